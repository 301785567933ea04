# `make demo` and `make test` do everything that they need by themselves, on a machine that has
# Python 3.11 or newer.  Set PYTHON to use another interpreter, VENV to put the environment elsewhere.

PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint format docs clean

help:
	@echo "make demo    run the demonstration (installs the package into $(VENV) first)"
	@echo "make test    lint, check types and run the tests"
	@echo "make lint    lint and check types only"
	@echo "make format  lay out the code as lint wants it"
	@echo "make docs    build the guide into site/"
	@echo "make clean   remove the environment and all caches"

demo: $(VENV)/.core
	$(BIN)/vaneb demo

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/flower/live
	$(BIN)/python -m pytest tests/flower/live  # real processes with time limits: one after the other

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

# The stamps make a second run cheap: pip is asked again only when the requirements have changed.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python found. Install Python 3.11 or newer." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=...)." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
