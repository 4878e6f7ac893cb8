# `make demo` and `make test` do all the set-up on a machine that has Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test test-slow lint types docs format clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, got " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml setup.py $(wildcard jaxdelegate/litert/*.[ch]) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml setup.py $(wildcard jaxdelegate/litert/*.[ch]) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[lint,test]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/jaxdelegate demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) -m 'not slow and not gpu'

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) -m 'slow and not gpu'

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

types: $(VENV)/.installed-lint
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --quiet --strict

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info
