# The short way in. Everything here is a few lines of tools/ and of CMake's presets.
#   make PRESET=dev test    with another of CMakePresets.json

PRESET ?= release
BUILD = build/$(PRESET)

.PHONY: help setup build demo test format bench clean

help:
	@echo 'make demo     train a small GPT on text of this machine, in about four minutes after the build of five'
	@echo 'make test     run all tests'
	@echo 'make setup    install what is missing: Debian packages, a virtual environment in .venv'
	@echo 'make build    build everything, and bin/shoal'
	@echo 'make bench    build and run the benchmarks'
	@echo 'make format   format the tree'
	@echo 'make clean    remove build/ and bin/'
	@echo
	@echo 'PRESET=dev, release (the default), asan or tsan chooses the build.'

setup:
	@tools/setup.sh $(SETUP)

$(BUILD)/build.ninja: | setup
	@cmake --preset $(PRESET)

build: $(BUILD)/build.ninja
	@cmake --build --preset $(PRESET) --parallel $$(nproc)
	@mkdir -p bin && ln -sfn ../$(BUILD)/shoal bin/shoal

demo: SETUP = --demo
demo: $(BUILD)/build.ninja
	@echo "building the shoal command: the first time about five minutes on two cores"
	@NINJA_STATUS='[%f of %t, %e s] ' cmake --build --preset $(PRESET) --parallel $$(nproc) --target shoal
	@mkdir -p bin && ln -sfn ../$(BUILD)/shoal bin/shoal
	./bin/shoal train recipes/gpt.toml

test: build
	ctest --preset $(PRESET) --parallel $$(nproc)
	OMP_WAIT_POLICY=passive .venv/bin/python -m pytest -q --durations=25 -n $$(nproc) --dist worksteal tests/python

bench: $(BUILD)/build.ninja
	@cmake --build --preset $(PRESET) --parallel $$(nproc) --target bench
	@for program in $(BUILD)/bench/*; do "$$program" || exit; done

format: setup
	@tools/format.sh

clean:
	rm -rf build bin
