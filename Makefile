# Everything runs from a fresh clone with Python ≥ 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests that fail are run once more by themselves: beside others, real processes may be late. What fails twice has failed.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

.PHONY: ready demo test browser test-faults test-attacks test-docs test-bench docs pages check format bench sbom clean

ready: $(READY)           ## install everything into .venv

demo: $(READY)            ## why federate? nine hospitals, real data; ends with a table and a report
	$(BIN)/hansa demo
	@echo "The command hansa is in $(VENV). To find it by name: . $(BIN)/activate"

test: $(READY)            ## the fast tests, two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile || $(AGAIN)

browser: $(READY)         ## Chromium and an OpenID Connect provider, for the tests of the pages; skipped where they cannot be installed
	@command -v chromedriver > /dev/null || { command -v apt-get > /dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-noto-core > /dev/null; } || \
	  echo "Chromium cannot be installed here: the tests in a browser will be skipped"
	@test -d build/oidc/node_modules/oidc-provider || { command -v npm > /dev/null && mkdir -p build/oidc && \
	  npm install --silent --no-audit --no-fund --prefix build/oidc 'oidc-provider@^9'; } || \
	  echo "npm's oidc-provider cannot be installed here: the test of OpenID Connect will be skipped"

test-faults: browser      ## real processes on loopback, killed and cut off; the pages in a real browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow_fault tests || $(AGAIN) -m slow_fault tests

test-attacks: $(READY)    ## the red team and the measured attacks, with each defence off and on
	$(BIN)/python -m pytest -n 2 --dist loadfile -m attack tests || $(AGAIN) -m attack tests

test-docs: $(READY)       ## a smoke run of every benchmark and paper, and every command and code block of README and docs
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m docs tests || $(AGAIN) -m docs tests

test-bench: $(READY)      ## smoke runs of the benchmarks that take minutes
	$(BIN)/python -m pytest -m long_bench tests/benchmarks

docs: $(READY)            ## the documentation as a site in build/site, which needs no network; a warning is an error
	$(BIN)/python packaging/pages.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pages: $(READY)           ## write the generated pages: settings, command line, tutorials
	$(BIN)/python packaging/pages.py

check: $(READY)           ## formatting, lint, layers of imports, strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)           ## every benchmark against its peer in one run; writes docs/benchmarks.md and the README's table
	$(BIN)/python benchmarks/_page.py

sbom: $(READY)            ## a CycloneDX bill of materials and a licence check, into build/
	$(BIN)/python packaging/sbom.py --validate

# torch first, pinned, by plain pip: asked for by another package it would bring gigabytes of CUDA.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build runs .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
