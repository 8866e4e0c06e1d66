# make          build the program and its modules into build/
# make demo     the whole loop on this machine: estimate, tune, train, compare (about five minutes on two cores)
# make check    install what is missing, build and run all tests, plainly and under the address and undefined-behaviour sanitizers
# make install  install under PREFIX (default /usr/local; DESTDIR is honoured)
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)

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

# make check builds in a folder of its own where there is no build yet, with the CUDA kernels for one architecture, the
# oldest of those that are shipped, whose limits are the strictest: each further one costs as much again.
CHECK := $(if $(wildcard $(BUILD)/build.ninja),$(BUILD),$(BUILD)-check)

$(BUILD)-check/build.ninja:
	cmake -S . -B $(BUILD)-check -G Ninja -DTWINSPEED_CUDA_ARCHITECTURES=80-real $(CMAKE_FLAGS)

build-check: $(CHECK)/build.ninja
	cmake --build $(CHECK) -j $(JOBS)

# Clang for the second build: its libFuzzer drives the parsers' fuzz targets a fixed number of times.
$(BUILD)-sanitize/build.ninja:
	CC=clang CXX=clang++ cmake -S . -B $(BUILD)-sanitize -G Ninja -DTWINSPEED_SANITIZE=address,undefined \
	  -DTWINSPEED_FUZZ=ON $(CMAKE_FLAGS)

build-sanitize: $(BUILD)-sanitize/build.ninja
	cmake --build $(BUILD)-sanitize -j $(JOBS)

check: packages
	@$(MAKE) --no-print-directory check-all

check-all: build-check build-sanitize
	@status=0; \
	echo "== tests under the sanitizers, and the fuzz targets"; \
	$(CTEST) --test-dir $(BUILD)-sanitize -LE slow || status=1; \
	echo "== tests"; \
	$(CTEST) --test-dir $(CHECK) || status=1; \
	exit $$status

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD) $(BUILD)-check $(BUILD)-sanitize

.PHONY: all build packages demo build-check build-sanitize check check-all install clean
.NOTPARALLEL:
