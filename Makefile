# `make demo` and `make test` are all a newcomer needs: each makes its own virtual environment and does everything.
PYTHON ?= python3
# What the environments were made from; they are remade when it changes.
META := pyproject.toml constraints.txt
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test lint types layers unit gpu-test notebooks clean

help:
	@echo "make demo       break down and compare recorded decodes (base dependencies, no torch)"
	@echo "make test       lint, types, layering and tests (development dependencies)"
	@echo "make gpu-test   the GPU suite, on a machine with an NVIDIA GPU and nvcc"
	@echo "make notebooks  JupyterLab on the notebooks, in an environment of its own"
	@echo "make clean      remove the virtual environments and caches"

.venv-demo/made: $(META)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python $(PIP) --editable .
	touch $@

.venv/made: $(META)
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) --editable '.[dev]'
	touch $@

demo: .venv-demo/made
	.venv-demo/bin/glqprof demo

.venv-notebooks/made: $(META)
	$(PYTHON) -m venv .venv-notebooks
	.venv-notebooks/bin/python $(PIP) --editable '.[notebooks,trend]'
	touch $@

notebooks: .venv-notebooks/made
	.venv-notebooks/bin/jupyter lab notebooks

test: lint types layers unit

lint: .venv/made
	.venv/bin/ruff check .

types: .venv/made
	.venv/bin/mypy

layers: .venv/made
	.venv/bin/lint-imports

unit: .venv/made
	.venv/bin/python -m pytest --numprocesses 2 --dist loadgroup

# Runs with the machine's own Python, which holds its torch: nothing is installed. The record names GPU, driver, commit.
GPU_RECORD ?= benchmarks/results/gpu-test.json
gpu-test:
	PYTHONPATH=.:kernels GLQPROF_GPU_RECORD=$(GPU_RECORD) $(PYTHON) -m pytest tests/gpu

clean:
	rm -rf .venv .venv-demo .venv-notebooks .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache glqprof-demo
