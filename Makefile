PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SHARED_OUT := -n 2 --dist loadfile --no-loadscope-reorder
SLURM := $(addprefix tests/system/cluster/test_,slurm.py launch.py page.py prep_array.py secrets.py)
SUPERVISED := time_limits_and_a_run_that_finishes_all_the_same scancel_ends_the_job_for_good \
  'a_stopped_node_is_replaced_by_a_spare[True]'
SLURM += $(addprefix tests/system/cluster/test_supervisor.py::test_,$(SUPERVISED))
SLURM_SHORT := $(addprefix tests/system/cluster/test_,slurm.py::test_warned_job_saves_and_is_requeued \
  'launch.py::test_nodes_train_like_processes_of_one_host[2-3]' \
  hosts.py::test_two_hosts_train_like_two_processes_and_tell_no_secret)

.PHONY: install demo test test-slurm test-slurm-short test-slow test-all soak check
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,fast-tokenizers]'
	touch $@

demo: install
	$(BIN)/maskwright demo

test: install
	$(PYTEST) -m 'not slow' $(SHARED_OUT)

test-slurm: install
	$(PYTEST) -m slow -n 3 --dist loadfile $(SLURM) --deselect tests/system/cluster/test_prep_array.py::test_two_thousand_tasks

test-slurm-short: install
	$(PYTEST) -m slow -n 2 $(SLURM_SHORT)

test-slow: install
	$(PYTEST) -m slow $(SHARED_OUT)

test-all: install
	$(BIN)/python -m pytest

soak: install
	$(BIN)/python benchmarks/soak.py

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
