# make run    trains a small GPT on device "tpu" (sets everything up first)
# make test   every kind of test; make test-all takes whole sweeps instead of parts, and the analyzer
# make test-tpu-like   the Python tests on a plugin that behaves as a TPU's does
# make test-ecosystem   Transformers, Accelerate, Lightning ... on the device (installs them)
# make sweep  hundreds of model architectures on the device beside the CPU (needs ../shared/models)
# make tpu-compile   compiles our programs for TPUs (installs libtpu); needs none
# make bench  speed table: this device beside PyTorch's CPU kernels
# make golden rewrites the expected StableHLO in tests/golden
# make docs   the documentation as a site, build/docs/index.html
# make build | wheel | clean | distclean
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
BIN    := $(VENV)/bin
CMAKE  := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)

CPU_PLUGIN = $(abspath $(wildcard \
  $(VENV)/lib/python3*/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so))

# Processes that share the Python tests; each wants a core and about 2 GiB.
TEST_WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))

C_FILES = $(shell find core shim tests -name '*.[ch]' -o -name '*.cpp')

export PYTHONDONTWRITEBYTECODE := 1

.PHONY: run test test-all bench bench-jax build build-tests wheel clean distclean venv check tidy \
  format ctest ctest-all golden asan tsan pytest test-tpu-like tpu-compile docs \
  test-ecosystem sweep
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

$(VENV)/.tpu: $(VENV)/.run requirements/tpu.txt
	@tools/setup_venv.sh $(VENV) tpu $(PYTHON)
	@touch $@

$(VENV)/.docs: $(VENV)/.run requirements/docs.txt
	@tools/setup_venv.sh $(VENV) docs $(PYTHON)
	@touch $@

# Libraries on top of PyTorch live in environments of their own, which see the packages of this one.
ECOSYSTEM := .venv-ecosystem
SWEEP     := .venv-sweep

$(ECOSYSTEM)/.installed: $(VENV)/.test requirements/ecosystem.txt
	@tools/setup_venv.sh $(ECOSYSTEM) ecosystem $(VENV)
	@touch $@

# Beside the other: Transformers imports a torchvision that it finds, and a CUDA build breaks that.
$(SWEEP)/.installed: $(VENV)/.run requirements/ecosystem.txt requirements/sweep.txt
	@tools/setup_venv.sh $(SWEEP) ecosystem $(VENV)
	@tools/setup_venv.sh $(SWEEP) sweep
	@touch $@

# --- build: CMake and Ninja decide what is out of date ---

build/main/build.ninja: $(VENV)/.run
	@$(CMAKE) -S . -B build/main -DPython_EXECUTABLE=$(abspath $(PY)) --log-level=WARNING
	@touch $@

build: build/main/build.ninja $(VENV)/.linked
	@$(BIN)/ninja -C build/main --quiet

# --- tests, from cheap to dear ---

# A section per job, and a table of their seconds at the end.
test:
	+@$(PYTHON) tools/run_jobs.py "$(MAKE)" venv build check ctest asan,tsan pytest

test-all: export TORCH_TPU_TEST_ALL := 1
test-all:
	+@$(PYTHON) tools/run_jobs.py "$(MAKE)" venv build check tidy ctest asan,tsan pytest

venv: $(VENV)/.test $(VENV)/.tpu
	@:

check: build build/tests/build.ninja
	$(PY) tools/check_layering.py
	$(PY) tools/gen_env_docs.py --check
	$(PY) tools/gen_stubs.py --check
	$(PY) tools/count_lines.py
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(call clang-tidy,quick)

# clang-tidy over core/; a minute of one core with the analyzer.
tidy: build/tests/build.ninja
	$(call clang-tidy,all,--checks=$(ANALYZER))

# Without what takes a failed call's status for NULL, or a rank for unbounded.
NOT_ANALYZED = core.BitwiseShift core.CallAndMessage core.DivideZero core.NonNullParamChecker \
  core.NullDereference core.NullPointerArithm core.UndefinedBinaryOperatorResult core.uninitialized.Assign \
  optin.performance.Padding security.ArrayBound \
  security.insecureAPI.DeprecatedOrUnsafeBufferHandling unix.cstring.UninitializedRead
comma := ,
ANALYZER = clang-analyzer-*$(subst $() ,,$(NOT_ANALYZED:%=$(comma)-clang-analyzer-%))

# $(call clang-tidy,NAME,FLAGS): shows the log, which says much about progress, only on failure.
define clang-tidy
@find core -name '*.c' | xargs -P $(TEST_WORKERS) -n 10 $(BIN)/clang-tidy -p build/tests --quiet $(2) \
  >build/tidy_$(1).log 2>&1 || { grep -v 'Processing file\|warnings generated' build/tidy_$(1).log; exit 1; }
endef

format: $(VENV)/.test
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(C_FILES)

# The same tests three times: as they are, and twice with sanitizers.
OPTIONS_asan = -DTPU_SANITIZE=address
OPTIONS_tsan = -DTPU_SANITIZE=thread
TEST_BUILDS  = build/tests build/asan build/tsan
C_TESTS      = tests/core/tpu_core_tests

$(TEST_BUILDS:=/build.ninja): build/%/build.ninja: $(VENV)/.test
	@$(CMAKE) -S . -B build/$* -DTPU_BUILD_SHIM=OFF -DTPU_BUILD_TESTS=ON $(OPTIONS_$*) \
	  --log-level=WARNING
	@touch $@

# Some C tests run what the core writes on XLA's CPU plugin as well.
WITH_PLUGIN = TF_CPP_MIN_LOG_LEVEL=1 TORCH_TPU_PJRT_PLUGIN=$(CPU_PLUGIN)

build-tests: build/tests/build.ninja
	@$(BIN)/ninja -C build/tests --quiet

ctest: build-tests
	$(WITH_PLUGIN) build/tests/$(C_TESTS)

ctest-all: export TORCH_TPU_TEST_ALL := 1
ctest-all: ctest

# Rewrites what tests/golden/*.golden say about emitted programs; read the diff before committing it.
golden: build-tests
	build/tests/tests/golden/tpu_golden write tests/golden

asan: build/asan/build.ninja
	@$(BIN)/ninja -C build/asan --quiet
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/asan/$(C_TESTS)

tsan: build/tsan/build.ninja
	@$(BIN)/ninja -C build/tsan --quiet
	TSAN_OPTIONS=suppressions=tests/core/tsan.supp $(WITH_PLUGIN) build/tsan/$(C_TESTS)

pytest: build build-tests $(VENV)/.tpu
	OMP_NUM_THREADS=1 $(PY) -m pytest tests -n $(TEST_WORKERS) --dist worksteal

# The Python tests as on a TPU, by the plugin of tests/tpu_like; ARGS="tests/test_x.py -k y" for a part.
AS_ON_A_TPU = TORCH_TPU_PLATFORM=tpu TPU_LIKE_PLUGIN=$(CPU_PLUGIN) \
  TORCH_TPU_PJRT_PLUGIN=$(abspath build/tests/tests/tpu_like/libtpu_like.so)

test-tpu-like: build build-tests
	$(AS_ON_A_TPU) OMP_NUM_THREADS=1 $(PY) -m pytest $(or $(ARGS),tests -n $(TEST_WORKERS))

# ARGS="-k pipelines" for a part.
test-ecosystem: build $(ECOSYSTEM)/.installed
	OMP_NUM_THREADS=1 $(ECOSYSTEM)/bin/python -m pytest tests/integrations $(ARGS)

# Goes on where it stopped; ARGS="--every 16" or "--only bert" for a part, "--again" to begin anew.
sweep: build $(SWEEP)/.installed
	$(PY) tools/sweep_models.py --python $(abspath $(SWEEP)/bin/python) $(ARGS)

# ARGS="--dump DIR" for more programs, "--summary" for the committed table.
tpu-compile: build build-tests $(VENV)/.tpu
	$(PY) tools/tpu_compile.py $(ARGS)

bench: build
	$(PY) benchmarks/bench.py $(ARGS)

# The peer of some bench lines, in an environment of its own.
bench-jax: build
	$(PY) benchmarks/bench.py --setup-jax

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(VENV)/.run
	$(PY) -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist

clean:
	rm -rf build dist out torch_tpu/_C*.so

distclean: clean
	rm -rf $(VENV)
