PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-slow test-all check
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,fast-tokenizers]'
	touch $@

demo: install
	$(BIN)/maskwright demo

test: install
	$(BIN)/python -m pytest -m 'not slow' --ignore tests/unit
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n 2 tests/unit

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadscope

test-all: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
