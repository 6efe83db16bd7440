# Everything runs from a fresh clone with Python ≥ 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What fails is run once more, by itself: beside others, real processes may be late. What fails twice has failed.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

.PHONY: demo test test-faults check format bench clean

demo: $(READY)            ## the main job on real data; ends with a table and a report
	$(BIN)/hansa demo

test: $(READY)            ## the fast tests, two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile || $(AGAIN)

test-faults: $(READY)     ## real processes on loopback, killed and cut off
	$(BIN)/python -m pytest -m slow_fault tests || $(AGAIN) -m slow_fault tests

check: $(READY)           ## formatting, lint, strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)           ## every benchmark: ratios against a named peer, in one run
	for program in benchmarks/*.py; do case $$program in */_*) ;; *) $(BIN)/python $$program || exit 1;; esac; done

# torch first, pinned, by plain pip: asked for by another package it would bring gigabytes of CUDA.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache .hypothesis
