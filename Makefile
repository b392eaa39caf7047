# Each target makes its own virtual environment in .venv; later runs reuse it until pyproject.toml changes.
PYTHON ?= python3
BIN    := .venv/bin
WORKERS ?= 2
TORCH  ?= torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# Byte code of all that is installed would take a minute or more; what is imported is compiled then.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Byte code is kept, wherever this runs: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test seeds replay choices wheel release-check lint format types docs docs-serve docs-check docs-linkcheck clean

# Ten seconds, and a minute and a half more the first time, for the install.
demo: .venv/.installed
	@$(BIN)/python -m kiln tour

# Tests run in stages: `make test STAGE=long`. One that needs more time, another machine or other packages is a line here.
STAGE  ?= quick
STAGES := quick long gpu b200 ray versions newest
quick  := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations=30
long   := KILN_LONG_TESTS=1 KILN_MUTANTS=all KILN_CPU_OPT=2 $(quick)
gpu    := $(BIN)/python -m pytest -q tests/gpu
# All values of the kernels with tcgen05, then their times beside the predictions: build/b200.md.
b200   := $(BIN)/python benchmarks/b200.py
ray    := KILN_RAY_TESTS=1 $(BIN)/python -m pytest -q tests/workbench/core/test_ray.py
# The bridges with the oldest and the newest torch, jax, numpy and TVM-FFI, each in an environment of its own; a small program with the newest alone.
versions := $(BIN)/python tools/versions.py
newest := $(BIN)/python tools/versions.py newest --small

# The runtime's code is made anew where sources have changed: else every process that a test starts would make it, 10 to 20 s for all of it.
test: .venv/.dev $(if $(filter ray,$(STAGE)),.venv/.ray)
	-@$(BIN)/python tools/native_objects.py --here > /dev/null
	$(if $(filter $(STAGE),$(STAGES)),$($(STAGE)),$(error STAGE is one of: $(STAGES)))

# The same tests on the CPU target under five schedules, with one and with two worker threads.
seeds: .venv/.dev
	$(BIN)/python tools/schedules.py -n $(WORKERS)

# Compile a corpus with the revision BASE and with the working tree, and compare IR, PTX and launches: all cases, or those with the
# pattern ONLY in their names. Then which configs both choose, and what that costs by recorded times.
BASE ?= HEAD
replay: .venv/.dev
	$(BIN)/python tools/replay $(BASE) $(if $(ONLY),--only '$(ONLY)')

choices: .venv/.dev
	$(BIN)/python tools/replay/choices.py $(BASE) $(if $(ONLY),--only '$(ONLY)')

# dist/: the sdist and the wheel. The check tries the wheel in an empty environment of each Python that is found (not in CI: 20 minutes
# or more); ROOT names a system of Debian made by debootstrap, to try it there, too.
wheel: .venv/.installed
	$(BIN)/python tools/release.py build

release-check: .venv/.installed
	$(BIN)/python tools/release.py check $(if $(ROOT),--root '$(ROOT)') $(PYTHONS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/lint

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/lint --lower
	$(BIN)/python tools/surface.py lower

# All of src, tests and tools, or the folders TYPES.
types: .venv/.dev
	$(BIN)/pyright $(if $(filter 1,$(WORKERS)),,--threads $(WORKERS)) $(TYPES)

# The site, in build/docs. Warnings are errors; nothing is loaded from another site.
SPHINX := $(BIN)/python -m sphinx -q -j $(WORKERS) -W --keep-going
docs: .venv/.docs
	rm -rf build/docs
	$(SPHINX) -b html -d build/docs-read docs build/docs
	$(BIN)/python tools/site_check.py build/docs

docs-serve: docs
	$(BIN)/python -m http.server --directory build/docs $(if $(PORT),$(PORT),8000)

# Look at pages in two themes and widths, with search and playground, in a headless Chromium; screenshots are in build/docs-check.
# It needs chromium, chromium-browser or google-chrome in PATH, and fails where there is none.
docs-check: docs
	$(BIN)/python tools/site_pages.py build/docs build/docs-check

# Try the links to other sites, where there is a network.
docs-linkcheck: .venv/.docs
	$(SPHINX) -b linkcheck -d build/docs-read docs build/docs-links

clean:
	rm -rf .venv build

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "Kiln needs Python 3.10 or newer; choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	@echo "Installing Kiln into .venv: about a minute and a half, the first time"
	@$(PIP) -e .
	@$(BIN)/python tools/native_objects.py --here > /dev/null
	@touch $@

# The development install holds everything the plain one does. torch's build for the CPU is a version of its own on x86-64,
# where a plain one brings gigabytes of CUDA; the package index does not have it, torch's own one does.
.venv/.dev: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[dev]'
	@$(PIP) $(TORCH)+cpu 2> /dev/null \
	  || if [ "$$(uname -m)" = x86_64 ]; then $(PIP) $(TORCH)+cpu --extra-index-url $(TORCH_INDEX); else $(PIP) $(TORCH); fi \
	  || echo "== NO TORCH: $(TORCH)+cpu cannot be installed here, so the tests that need it will be skipped" >&2
	$(BIN)/python tools/native_objects.py --here
	@touch .venv/.installed $@

# What the site needs. Sphinx 9 runs on Python 3.11 and later.
.venv/.docs: pyproject.toml | .venv/bin/python
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "The site needs Python 3.11 or newer; choose one with: make clean; make PYTHON=python3.12 docs" >&2; exit 1; }
	$(PIP) -e '.[docs]'
	@touch $@

# What the stage `ray` needs: two nodes of a cluster on this machine.
.venv/.ray: .venv/.dev
	@$(PIP) -e '.[ray]' && touch $@ \
	  || echo "== NO RAY: it cannot be installed here, so the tests of many machines will be skipped" >&2
