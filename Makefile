# `make demo` and `make test` do all the set-up on a machine that has Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
BUILT_FROM := pyproject.toml setup.py $(wildcard jaxdelegate/litert/*.[ch] jaxdelegate/kernels/*.cc jaxdelegate/kernels/*.h jaxdelegate/kernels/*.inc)
SANITIZED := -std=c++17 -O1 -g -fPIC -shared -fvisibility=hidden -ffp-contract=fast -fno-trapping-math -fwrapv \
  -fsanitize=address,undefined -fno-sanitize-recover=all
KERNEL_TESTS := $(wildcard tests/op_lowering/test_native*.py) tests/op_lowering/test_ended_convolution.py

.PHONY: demo test test-slow sanitize lint types docs format clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, got " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BUILT_FROM) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: $(BUILT_FROM) | $(BIN)/python
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

# The native kernels' own tests, with every access to memory and every integer operation checked.
sanitize: $(VENV)/.installed-test
	@mkdir -p build
	$(CXX) $(SANITIZED) jaxdelegate/kernels/*.cc -o build/sanitized_kernels.so
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 LD_PRELOAD="$(foreach name,asan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))" \
	  $(BIN)/python -m pytest -n $(JOBS) --kernels=build/sanitized_kernels.so $(KERNEL_TESTS)

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
