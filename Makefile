# Each target makes .venv by itself; only python3 (3.11 or later) with venv and pip is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,gbdt,tune]'
	touch .venv/ready

demo: .venv/ready
	$(BIN)/fieldwise demo --out demo

test: .venv/ready
	$(BIN)/python -m pytest

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info demo
