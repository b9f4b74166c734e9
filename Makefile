# Each target makes .venv by itself; only python3 (3.11 or later) with venv and pip is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,gbdt,tune,serve]'
	touch .venv/ready

demo: .venv/ready
	$(BIN)/fieldwise demo --out demo

# One thread in each of as many processes as there are cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test: .venv/ready
	$(PYTEST)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info demo
