PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
SHARED_OUT := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: install demo test test-quick test-conformance test-slurm test-slurm-short test-slow test-all soak check
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,fast-tokenizers]'
	touch $@

demo: install
	$(BIN)/maskwright demo

test: install
	$(PYTEST) -m 'not slow and not conformance' $(SHARED_OUT)

test-quick: install
	$(PYTEST) -m 'not slow and not process and not gpu and not conformance' $(SHARED_OUT)

test-conformance: install
	$(BIN)/python -m pip install --quiet --editable '.[conformance]'
	HF_HUB_OFFLINE=1 $(PYTEST) $(SHARED_OUT) tests/conformance

test-slurm: install
	$(PYTEST) -m 'slurm and slow' -n 3 --dist loadfile tests/system/cluster

test-slurm-short: install
	$(PYTEST) -m short -n 2 tests/system/cluster

test-slow: install
	$(PYTEST) -m slow $(SHARED_OUT)

test-all: install
	$(BIN)/python -m pytest

soak: install
	$(BIN)/python -m benchmarks.soak

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
