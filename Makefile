PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-slurm test-slow test-all soak check
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,fast-tokenizers]'
	touch $@

demo: install
	$(BIN)/maskwright demo

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not alone' -n 2 --dist loadfile --no-loadscope-reorder
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and alone'

test-slurm: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --no-loadscope-reorder tests/cluster/test_slurm.py tests/cluster/test_launch.py tests/cluster/test_secrets.py

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --no-loadscope-reorder

test-all: install
	$(BIN)/python -m pytest

soak: install
	$(BIN)/python benchmarks/soak.py

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
