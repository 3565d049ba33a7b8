# Each target makes .venv when it is missing, and again when the pins or the package's needs change.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: figures test lint bench clean

figures: .venv/.installed
	$(BIN)/batchscience figures --source published --out out/figures
	$(BIN)/batchscience figures --workload digits/fc_64/momentum --data data/studies/tables --out out/figures

test: .venv/.installed-test
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: .venv/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed-test
	$(BIN)/python benchmarks/run.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

.venv/.installed-test: .venv/.installed pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf .venv out dist build
