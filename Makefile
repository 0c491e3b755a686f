# Everything from a fresh clone: `make demo` and `make test` make .venv first if it is not there.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2

.PHONY: demo test test-fast lint clean

demo: .venv/.demo-installed
	HF_HUB_OFFLINE=1 $(BIN)/fedpeft simulate simulations/demo.toml

test: .venv/.all-installed
	HF_HUB_OFFLINE=1 $(PYTEST)

test-fast: .venv/.all-installed
	HF_HUB_OFFLINE=1 $(PYTEST) -m "not slow"

lint: .venv/.all-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build *.egg-info

.venv/.demo-installed: pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

.venv/.all-installed: pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[demo,ray,dev]'
	touch $@ .venv/.demo-installed

.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedpeft needs Python 3.11 or newer; make PYTHON=python3.12 ... names another")'
	$(PYTHON) -m venv .venv
