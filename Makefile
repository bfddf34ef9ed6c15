# The commands a person types. Each installs what it needs first (Debian packages when run as root, a
# Python environment in .venv), then does its work; a second run does only what changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The build is parallel inside ninja and ctest; targets here share folders and run one by one.
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

SECONDS ?= 60
FAULTS  ?= 300
STEPS   ?= 150
JOBS    ?= $(shell nproc)

setup     := tools/setup/install_dependencies.sh
stamps    := build/.stamps
python    := .venv/bin/python
gradients := data/gradients.safetensors

# ---------------------------------------------------------------------------------------------------

.PHONY: help
help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

.PHONY: build
build: build/release/build.ninja ## Build the release: command line at build/gradwire, package in .venv
	cmake --build --preset release
	@ln -sfn release/bin/gradwire build/gradwire

.PHONY: demo
demo: build $(stamps)/apt-demo ## Train with and without gradwire on four hosts of 1 Gbit/s: a table and a picture
	@mkdir -p build/demo
	build/gradwire bench train --methods gloo,grid:step=0.5 --steps $(STEPS) --output build/demo/training.json
	$(python) bench/plot_training.py build/demo/training.json --output build/demo/training.png

.PHONY: rates
rates: build $(gradients) ## Show the codecs on gradients of real models: a table and a picture
	build/gradwire bench distortion --gradients $(gradients)
	$(python) bench/plot_rate.py

.PHONY: test
test: build build/asan/build.ninja .venv/installed-trainers $(stamps)/apt-demo ## Run every test, in C++ and Python, with and without sanitizers
	ctest --preset release -j $(JOBS)
	$(python) -m pytest -q
	cmake --build --preset asan
	ctest --preset asan -j $(JOBS) --label-exclude slow

.PHONY: wheel-test
wheel-test: .venv/bin/python ## Install by README's line into a fresh environment, without and with PyTorch, and use it
	$(python) tests/wheel_test.py

.PHONY: torch-sanitize
torch-sanitize: build/torch-asan/build.ninja build/torch-tsan/build.ninja ## Run DDP's, FSDP2's and residual compression's tests with the modules under sanitizers
	cmake --build --preset torch-asan
	$(python) tests/torch_sanitize.py asan
	cmake --build --preset torch-tsan
	$(python) tests/torch_sanitize.py tsan

.PHONY: bench
bench: build ## Measure speed, distortion and the entropy coder on this machine
	build/gradwire bench codec
	build/gradwire bench distortion
	build/gradwire bench coder

.PHONY: fuzz
fuzz: build/fuzz/build.ninja ## Attack every decoder for SECONDS=60 each under sanitizers
	cmake --build --preset fuzz
	@for target in build/fuzz/fuzz/*_fuzz; do \
	  name=$$(basename $$target); found=build/fuzz/corpus/$$name; \
	  mkdir -p $$found build/fuzz/findings fuzz/corpus/$$name; \
	  echo "== $$name, $(SECONDS) s"; \
	  $$target -max_total_time=$(SECONDS) -timeout=10 -malloc_limit_mb=64 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/findings/$$name- $$found fuzz/corpus/$$name; \
	done

.PHONY: soak
soak: build ## Let FAULTS=300 faults strike ranks while they compute (as root)
	$(python) tests/soak/soak.py --faults $(FAULTS)

.PHONY: conformance
conformance: build ## Run all of torch's own tests of a backend with gloo and with gradwire
	$(python) tests/torch_conformance/conformance.py
	$(python) tests/torch_conformance/conformance.py --debug-detail

.PHONY: lint
lint: build/dev/build.ninja $(stamps)/apt-lint ## Check format, common mistakes and layers
	$(python) tests/layering_test.py
	tools/lint/lint.sh
	$(python) -m ruff check .
	$(python) -m ruff format --check .

.PHONY: format
format: $(stamps)/apt-lint .venv/installed-dev ## Format C++ and Python in place
	tools/lint/lint.sh --fix
	$(python) -m ruff format .

.PHONY: clean
clean: ## Remove build/ (.venv and captured data stay)
	rm -rf build

# ---------------------------------------------------------------------------------------------------
# Set-up. An empty file remembers that packages are there; Python's stand in .venv and go with it.

$(stamps)/apt-%: $(setup)
	@$(setup) $*
	@mkdir -p $(@D) && touch $@

# Not the python3 of PATH: python3-dev has the headers of Debian's own.
.venv/bin/python: | $(stamps)/apt-build
	/usr/bin/python3 -m venv .venv

.venv/installed-%: python/requirements-%.txt | .venv/bin/python
	$(python) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The package is used from the tree: python/gradwire, with its module built in place.
.venv/importable: .venv/installed-dev
	@echo "$(CURDIR)/python" > "$$($(python) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gradwire.pth"
	@touch $@

build/%/build.ninja: CMakePresets.json $(stamps)/apt-build .venv/importable
	cmake --preset $*
	@touch $@

build/release/build.ninja build/torch-asan/build.ninja build/torch-tsan/build.ninja: .venv/installed-torch
.venv/installed-trainers: .venv/installed-torch  # or pip would take another one
build/fuzz/build.ninja: $(stamps)/apt-fuzz

$(gradients): | $(stamps)/apt-demo .venv/installed-torch
	@mkdir -p $(@D)
	$(python) bench/capture_gradients.py --output $@
