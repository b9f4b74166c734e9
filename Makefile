# Each target makes .venv by itself; only python3 (3.11 or later) with venv and pip is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo distributed interpreter cluster test check format clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,gbdt,tune,serve]'
	touch .venv/ready

# TorchRec, which benchmarks/torchrec_fused.py compares with. It asks for the CUDA build of FBGEMM, so no extra of the
# package can name it: its needs first, then it and the CPU build that goes with torch 2.13, as they are.
.venv/distributed: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt numpy tqdm pyre-extensions 'pyvers<0.3' \
		cloudpickle orjson importlib_metadata packaging
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps \
		fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0 torchmetrics==1.0.3 tensordict lightning-utilities
	touch .venv/distributed

distributed: .venv/distributed

demo: .venv/ready
	$(BIN)/fieldwise demo --out demo

# One thread in each of as many processes as there are cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

# Triton, whose interpreter runs the GPU's kernels on a CPU for their tests; in a folder that only these look into. Pinned
# here, not in constraints.txt: a CUDA build of torch asks for a version of its own.
.venv/interpreter: .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps --target .venv/interpreter triton==3.6.0

interpreter: .venv/interpreter

# Ray, for `prepare --engine ray`.
.venv/cluster: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cluster]'
	touch .venv/cluster

cluster: .venv/cluster

# Tests of the GPU's kernels and of clusters run where Triton and Ray can be had, and are skipped elsewhere.
.PHONY: optional
optional: .venv/ready
	@$(MAKE) --no-print-directory interpreter || echo "Triton cannot be installed here: tests of the GPU's kernels are skipped"
	@$(MAKE) --no-print-directory cluster || echo "Ray cannot be installed here: tests of clusters are skipped"

test: optional
	$(PYTEST)

check: optional
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

# The sdist and, from it, the wheel.
.PHONY: wheel wheel-check matrix
wheel: .venv/ready
	rm -rf dist
	$(BIN)/python tools/build_wheel.py dist

# The wheel in an empty venv, outside of the repository: demo, a study, serve.
wheel-check: wheel
	rm -rf build/empty
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls -d $(CURDIR)/dist/*.whl)[serve]"
	build/empty/bin/python -P tools/first_steps.py

# The wheel with the lowest and the newest dependencies, on each Python that is here; CASES="3.11-lowest 3.12-newest" for some.
matrix: wheel
	$(BIN)/python tools/matrix.py dist/*.whl build/matrix $(CASES)

# The site in build/site: complete without a network. Only what builds it lies in .venv/docs, torch does not.
.PHONY: docs notebooks
.venv/docs/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python -m pip install --quiet --constraint constraints.txt $$($(PYTHON) -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	touch .venv/docs/ready

docs: .venv/ready .venv/docs/ready
	$(BIN)/python tools/reference.py build/reference
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict

# Runs the notebooks and keeps what they print and draw.
notebooks: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py examples/notebooks/*.ipynb

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info demo
