# make run    trains a small GPT on device "tpu" (sets everything up first)
# make test   the whole test suite
# make bench  speed table: this device beside PyTorch's CPU kernels
# make golden rewrites the expected StableHLO in tests/golden
# make build | wheel | clean | distclean
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
BIN    := $(VENV)/bin
CMAKE  := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)

# A few C tests use a real plugin as well.
CPU_PLUGIN = $(abspath $(wildcard \
  $(VENV)/lib/python3*/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so))

# Processes that share the Python tests; each wants a core and about 2 GiB.
TEST_WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))

C_FILES = $(shell find core shim tests -name '*.[ch]' -o -name '*.cpp')

export PYTHONDONTWRITEBYTECODE := 1

.PHONY: run test bench bench-jax build wheel clean distclean check format ctest golden asan pytest
.DELETE_ON_ERROR:

run: build
	$(PY) examples/train_gpt.py $(ARGS)

# --- environment: each stamp is made once, and again when its pins change ---

$(VENV)/.run: tools/setup_venv.sh requirements/build.txt requirements/run.txt
	@tools/setup_venv.sh $(VENV) run $(PYTHON)
	@touch $@

$(VENV)/.test: $(VENV)/.run requirements/test.txt
	@tools/setup_venv.sh $(VENV) test $(PYTHON)
	@touch $@

$(VENV)/.linked: $(VENV)/.run pyproject.toml torch_tpu/_version.py tools/link_into_venv.py
	@$(PY) tools/link_into_venv.py
	@touch $@

# --- build: CMake and Ninja decide what is out of date ---

build/main/build.ninja: $(VENV)/.run
	@$(CMAKE) -S . -B build/main -DPython_EXECUTABLE=$(abspath $(PY)) --log-level=WARNING
	@touch $@

build: build/main/build.ninja $(VENV)/.linked
	@$(BIN)/ninja -C build/main --quiet

# --- tests, from cheap to dear ---

test: check ctest asan pytest
	@$(PY) tools/count_lines.py

check: build $(VENV)/.test
	@echo "== checkers"
	$(PY) tools/check_layering.py
	$(PY) tools/gen_env_docs.py --check
	$(PY) tools/count_lines.py --check
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)

format: $(VENV)/.test
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(C_FILES)

build/tests/build.ninja: $(VENV)/.test
	@$(CMAKE) -S . -B build/tests -DTPU_BUILD_SHIM=OFF -DTPU_BUILD_TESTS=ON \
	  -DPython_EXECUTABLE=$(abspath $(PY)) --log-level=WARNING
	@touch $@

build/asan/build.ninja: $(VENV)/.test
	@$(CMAKE) -S . -B build/asan -DTPU_BUILD_SHIM=OFF -DTPU_BUILD_TESTS=ON -DTPU_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(abspath $(PY)) --log-level=WARNING
	@touch $@

ctest: build/tests/build.ninja
	@echo "== C tests"
	@$(BIN)/ninja -C build/tests --quiet
	TF_CPP_MIN_LOG_LEVEL=1 TORCH_TPU_PJRT_PLUGIN=$(CPU_PLUGIN) build/tests/tests/core/tpu_core_tests

# Rewrites what tests/golden/*.golden say about emitted programs; read the diff before committing it.
golden: build/tests/build.ninja
	@$(BIN)/ninja -C build/tests --quiet tpu_golden
	build/tests/tests/golden/tpu_golden write tests/golden

asan: build/asan/build.ninja
	@echo "== C tests with AddressSanitizer and UndefinedBehaviorSanitizer"
	@$(BIN)/ninja -C build/asan --quiet
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/asan/tests/core/tpu_core_tests

pytest: build ctest
	@echo "== Python tests"
	OMP_NUM_THREADS=1 $(PY) -m pytest tests -n $(TEST_WORKERS) --dist worksteal

bench: build
	$(PY) benchmarks/bench.py $(ARGS)

# The peer of some bench lines, in an environment of its own.
bench-jax: build
	$(PY) benchmarks/bench.py --setup-jax

wheel: $(VENV)/.run
	$(PY) -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist

clean:
	rm -rf build dist out torch_tpu/_C*.so

distclean: clean
	rm -rf $(VENV)
