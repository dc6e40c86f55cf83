# The front door of weft. Each target works as the first command after the clone.
#
#   make         build the release preset; the program is build/release/bin/weft
#                (TORCH=DIR, here and below: with the torch of the Python environment DIR)
#   make demo    set up, build, run the main job on generated data
#   make test    set up, build, all tests, in release, in Python and under the sanitizers
#   make python  the Python package, in build/python, an environment with PyTorch from PyPI
#   make bench   the measurements, against their peers
#   make format  clang-format on all sources (make format-check only looks)
#   make lint    format-check, cppcheck, and clang-tidy (make tidy): minutes. CI leaves clang-tidy out,
#                which takes 8 s to 15 s of a core per source, most of it in headers; format-check and
#                cppcheck take 24 s of a core together
#   make fuzz    the readers of files under libFuzzer, FUZZ_SECONDS=300 each
#   make stress  a 4 GB checkpoint through `weft mask`, with its peak memory
#   make soak    a hundred training runs killed at random moments, of one process and of two ranks
#   make survive training runs killed at twenty random moments per recipe, and resumed
.PHONY: build program demo test python bench format format-check lint cppcheck tidy fuzz stress survive soak setup \
  clean
.DEFAULT_GOAL := build

WEFT := build/release/bin/weft
CONFIGURE = cmake --preset release -DWEFT_TORCH_DIR="$(abspath $(TORCH))"
SOURCES = $(shell git ls-files '*.h' '*.cpp')
FUZZ_SECONDS ?= 300

setup:
	@scripts/setup $(if $(TORCH),core)

build: setup
	@$(CONFIGURE) >/dev/null
	cmake --build --preset release

program: setup
	@$(CONFIGURE) >/dev/null
	cmake --build --preset release --target weft_programs

demo: program
	@scripts/demo $(WEFT)

test: build
	ctest --preset release
	@scripts/python test
	@cmake --preset asan >/dev/null
	cmake --build --preset asan
	ctest --preset asan

python: build
	@scripts/python

bench: program
	$(WEFT) bench gemm
	$(WEFT) bench gemm --shape 1x4096x4096 --shape 4x4096x4096 --pattern 2:4 --op fwd --threads 1
	$(WEFT) bench conv
	$(WEFT) bench attention
	$(WEFT) bench step
	$(WEFT) bench step --recipe s-ste --pattern 2:4
	$(WEFT) bench layer
	$(WEFT) bench layer --threads 1 --pattern 1:4 --pattern 2:4x2
	$(WEFT) bench solve
	$(WEFT) bench solve --size 8192 --pattern 2:4 --pattern 1:4 --pattern 3:4 \
	  --solver exact --solver magnitude --rounds 9
	$(WEFT) bench solve --size 8192 --pattern 8:16 --solver exact --threads 2 --rounds 3

format: setup
	clang-format -i $(SOURCES)

format-check: setup
	@clang-format --dry-run --Werror $(SOURCES)

lint: format-check cppcheck tidy

cppcheck:
	@scripts/setup lint
	@cppcheck -q -j 2 --std=c++20 --language=c++ --enable=warning,performance,portability \
	  --suppressions-list=.cppcheck --error-exitcode=1 -I. weft cli bench

# Whatever needs no torch, as the units that the core preset compiles; SIMD sources for one target.
tidy:
	@scripts/setup lint
	@cmake --preset core >/dev/null
	@cmake --build --preset core --target weft_commit >/dev/null
	@run-clang-tidy -quiet -p build/core -j 2 -extra-arg=-DHWY_COMPILE_ONLY_STATIC \
	  '^$(CURDIR)/(build/core/)?(weft|cli|bench)/' 2>/dev/null

fuzz:
	@scripts/setup fuzz
	@cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz
	for target in safetensors packed run toml; do \
	  mkdir -p build/fuzz/found/$$target; \
	  build/fuzz/bin/$${target}_fuzz -max_total_time=$(FUZZ_SECONDS) \
	    -artifact_prefix=build/fuzz/$$target- -dict=tests/fuzz/$$target.dict \
	    build/fuzz/found/$$target tests/fuzz/corpus/$$target || exit 1; \
	done

stress: program
	@scripts/stress $(WEFT)

soak: program
	@scripts/soak $(WEFT)

survive: program
	@scripts/survive $(WEFT)

clean:
	rm -rf build
