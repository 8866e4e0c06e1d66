# make          build the program and its modules into build/
# make demo     the whole loop on this machine: estimate, tune, train, compare (about five minutes on two cores)
# make check    install what is missing, build and run every test suite, plainly and under the address and
#               undefined-behaviour sanitizers; of long lists of random cases a sample that TWS_SEED chooses, by default
#               the commit
# make check-all  the same suites with all their cases and longer fuzzing, on every instruction set and CUDA
#               architecture, and once more with the cases of make check in a build by Clang without sanitizers: about an
#               hour on two cores
# make wheel    the Python module with the libraries that it needs as one file in dist/
# make site     the pages of docs/ as a site with a search, in build-site/site (needs mkdocs)
# make site-check  opens every page of the site in a headless Chromium (CHROMIUM names its command) and searches it
# make install  install under PREFIX (default /usr/local; DESTDIR is honoured)
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# Tests that run at once: one more than cores, since some tests wait (for deadlines, connections, processes) most of the time.
TESTS ?= $(shell expr $(JOBS) + 1)
# CTest counts them in halves (tests/CMakeLists.txt); one more is for a suite that waits most of the time.
HALVES = $(shell expr 2 \* $(TESTS) + 1)
CMAKE_FLAGS ?=

# MAKEFLAGS of this make must not reach Ninja's children.
unexport MAKEFLAGS

all: build

build: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/build.ninja:
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS)

packages:
	./install.sh

demo: packages
	$(MAKE) --no-print-directory build
	scenarios/demo/run.sh $(BUILD)

# Which random cases make check takes, and check-all in the build by Clang: those of the commit, or outside a repository
# always the same.
TWS_SEED ?= $(shell git rev-parse HEAD 2>/dev/null || echo twinspeed)

# make check builds in a folder of its own where there is no build yet, with the CUDA kernels for one architecture, the
# oldest of those that are shipped, whose limits are the strictest: each further one costs as much again. Inputs for the
# fuzz targets are few here, since the other build tries many under the sanitizers.
CHECK := $(if $(wildcard $(BUILD)/build.ninja),$(BUILD),$(BUILD)-check)
CONFIGURE = cmake -S . -G Ninja
CONFIGURE_CLANG = CC=clang CXX=clang++ $(CONFIGURE)
# Clang for the builds with sanitizers: its libFuzzer drives the parsers' fuzz targets a fixed number of times.
SANITIZED = -DTWINSPEED_SANITIZE=address,undefined -DTWINSPEED_FUZZ=ON -DTWINSPEED_TEST_SUFFIX=_sanitized

$(BUILD)-check/build.ninja:
	$(CONFIGURE) -B $(BUILD)-check -DTWINSPEED_CUDA_ARCHITECTURES=80-real -DTWINSPEED_DEBUG_INFO=-g1 \
	  -DTWINSPEED_FUZZ_RUNS=1000 $(CMAKE_FLAGS)

# Under the sanitizers the host's kernels are compiled once, with fused multiply-add where this machine's processor has it.
$(BUILD)-sanitize/build.ninja:
	$(CONFIGURE_CLANG) -B $(BUILD)-sanitize $(SANITIZED) -DTWINSPEED_HOST_ISAS=base \
	  -DTWINSPEED_HOST_BASE=$(if $(shell grep -w avx2 /proc/cpuinfo | grep -w -m 1 fma),x86-64-v3,x86-64) $(CMAKE_FLAGS)

$(BUILD)-all/build.ninja:
	$(CONFIGURE) -B $(BUILD)-all -DTWINSPEED_DEBUG_INFO=-g1 $(CMAKE_FLAGS)

$(BUILD)-all-sanitize/build.ninja:
	$(CONFIGURE_CLANG) -B $(BUILD)-all-sanitize $(SANITIZED) -DTWINSPEED_FUZZ_RUNS=100000 $(CMAKE_FLAGS)

$(BUILD)-all-clang/build.ninja:
	$(CONFIGURE_CLANG) -B $(BUILD)-all-clang -DTWINSPEED_CUDA=OFF -DTWINSPEED_DEBUG_INFO=-g1 \
	  -DTWINSPEED_TEST_SUFFIX=_clang -DTWINSPEED_TEST_SEED=$(TWS_SEED) $(CMAKE_FLAGS)

build-check: $(CHECK)/build.ninja
	cmake --build $(CHECK) -j $(JOBS)

build-sanitize build-all build-all-sanitize build-all-clang: build-%: $(BUILD)-%/build.ninja
	cmake --build $(BUILD)-$* -j $(JOBS)

# Packages first: the trees are configured by what is installed.
check: packages
	@$(MAKE) --no-print-directory build-check build-sanitize
	@echo "== tests, plain and under the sanitizers; random cases of TWS_SEED=$(TWS_SEED)"
	@TWS_SEED='$(TWS_SEED)' tests/run.sh $(BUILD)-tests $(CHECK) $(BUILD)-sanitize -- -j $(HALVES) -LE slow

check-all: packages
	@$(MAKE) --no-print-directory build-all build-all-sanitize build-all-clang
	@echo "== all cases of the tests, plain and under the sanitizers; those of TWS_SEED=$(TWS_SEED) built by Clang"
	@env -u TWS_SEED tests/run.sh $(BUILD)-all-tests $(BUILD)-all $(BUILD)-all-sanitize $(BUILD)-all-clang -- -j $(HALVES)

site:
	docs/site/build.sh $(BUILD)-site

site-check: site
	python3 docs/site/browse.py $(BUILD)-site/site $(CHROMIUM)

wheel: build
	python3 library/python/make_wheel.py $(BUILD) dist

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD) $(foreach tree,check sanitize tests all all-sanitize all-clang all-tests site,$(BUILD)-$(tree))

.PHONY: wheel site site-check all build packages demo build-check build-sanitize build-all build-all-sanitize build-all-clang
.PHONY: check check-all install clean
.NOTPARALLEL:
