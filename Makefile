# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo

.PHONY: demo test lint pytest bench docs clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/nitroc build examples/digits/exp.py -o $(DEMO)/digits --force
	$(BIN)/nitroc run $(DEMO)/digits --epochs 40 --run-dir $(DEMO)/run
	$(BIN)/nitroc evaluate $(DEMO)/digits --checkpoint $(DEMO)/run

test: lint pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

pytest: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build
