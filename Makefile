# Every target makes the environment in .venv first, so each works in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest
GROUPS_OF_TESTS := HF_HUB_OFFLINE=1 $(BIN)/python tests/groups.py
# Tests start many processes, so each module is compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-fast test-all test-changed test-lowest gate lint docs clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: .venv/.installed  ## Make .venv with everything for tests and docs

demo: .venv/.demo-installed  ## Fine-tune MiniLM over eight simulated clients
	HF_HUB_OFFLINE=1 $(BIN)/fedpeft simulate simulations/demo.toml

test: .venv/.installed  ## Run the tests of every feature
	$(PYTEST) -n 2 -m "not long"

test-fast: .venv/.installed  ## Run the quick tests, to run all day
	$(PYTEST) -n 2 -m "not long and not slow"

test-all: test gate  ## Run all tests: also kills, deployments, browsers; record the groups that pass
	$(GROUPS_OF_TESTS) all

test-changed: .venv/.installed  ## Run the groups of long tests that changes may have broken
	$(GROUPS_OF_TESTS) changed

gate: .venv/.installed  ## Run a deployment with kills and each page in a browser
	$(PYTEST) -m gate

test-lowest: build/lowest/.installed  ## Run the tests of test with the lowest allowed versions
	HF_HUB_OFFLINE=1 build/lowest/bin/python -m pytest -n 2 -m "not long"

lint: .venv/.installed  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.installed  ## Update the generated pages, and build the documentation in build/site
	HF_HUB_OFFLINE=1 $(BIN)/python docs/generate.py --update
	$(BIN)/python docs/generate.py build/docs
	$(BIN)/zensical build --clean --strict

clean:  ## Remove the environment and what was built
	rm -rf .venv build *.egg-info

.venv/.demo-installed: pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

.venv/.installed: pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[demo,ray,docs,dev]'
	# Without dependencies: an oracle, which needs no torchvision here, and the script of axe-core.
	$(BIN)/python -m pip install --quiet --no-deps byzfl==0.0.11 axe-playwright-python==0.1.8
	touch $@ .venv/.demo-installed

# Runtime dependencies at their lowest bounds, the rest as new as these admit. triton and sympy
# belong to one torch. torch is as new as allowed, unless NEWEST is empty: on Linux, PyPI has lower
# ones with gigabytes of CUDA packages only.
NEWEST ?= torch
LOWEST_EXTRAS := demo ray peft text pretrain onnx tensorboard mlflow wandb notebook
build/lowest/.installed: pyproject.toml
	rm -rf build/lowest
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet uv
	build/lowest/bin/uv pip compile pyproject.toml --quiet --python build/lowest \
		--resolution lowest-direct \
		$(addprefix --extra ,$(LOWEST_EXTRAS)) \
		$(addprefix --no-emit-package ,triton sympy $(NEWEST)) \
		--output-file build/lowest/constraints.txt
	build/lowest/bin/python -m pip install --quiet --constraint build/lowest/constraints.txt \
		--editable '.[demo,ray,docs,dev]'
	# Without dependencies, as in .venv.
	build/lowest/bin/python -m pip install --quiet --no-deps byzfl==0.0.11 axe-playwright-python==0.1.8
	touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedpeft needs Python 3.11 or newer; make PYTHON=python3.12 ... names another")'
	$(PYTHON) -m venv .venv
