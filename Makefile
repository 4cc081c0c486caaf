PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
SOURCES := benchmarks configs data_prep evaluation experiments launchers maskwright pretrain tests
SHARED_OUT := -n 2 --dist loadfile --no-loadscope-reorder
# One process more than cores: many tests wait for servers and processes.
SHARED_OUT_WAITING := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: install conformance demo test test-quick test-slurm test-slurm-short test-slow test-conformance test-experiments test-all soak check docs lowest wheel container
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs,fast-tokenizers]'
	touch $@

conformance: $(VENV)/.conformance
$(VENV)/.conformance: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[conformance]'
	touch $@

demo: install
	$(BIN)/maskwright demo

test: install
	$(PYTEST) -m 'not slow and not conformance' $(SHARED_OUT_WAITING)

test-quick: install
	$(PYTEST) -m 'not slow and not process and not gpu and not conformance' $(SHARED_OUT)

# Exported models, shards and the stream in other people's tools, whose packages it installs first.
test-conformance: conformance
	HF_HUB_OFFLINE=1 $(PYTEST) $(SHARED_OUT) tests/conformance

# Each experiment and the speedrun with tiny models, from the inputs to the page.
test-experiments: install
	$(PYTEST) tests/experiments/test_quick_runs.py tests/experiments/test_speedrun.py

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
	$(BIN)/vermin --quiet --no-tips --eval-annotations --violations --exclude long --target=3.10- $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install
	$(BIN)/mkdocs build --strict

wheel: install
	rm -rf build dist
	$(BIN)/python -m build

# Build the image of Containerfile on this system's release, and run the demo in it, as root.
container: wheel
	.ci/container

# Print the oldest release of each dependency that pyproject.toml allows, and what they need.
lowest: install
	@$(BIN)/uv pip compile --quiet --python-version 3.10 --no-annotate --no-header --all-extras --resolution lowest-direct pyproject.toml
