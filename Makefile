# Every target does the set-up it needs, says so, and starts within seconds the next time.
#
#   make demo PYTHON=python3.12           another interpreter (3.11 or newer)
#   make demo SYSTEM_TORCH=1              use the torch that this interpreter already has
#   make demo PIP_FLAGS="--index-url …"   from another index, e.g. PyTorch's CPU-only or CUDA one

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
CONSTRAINTS ?= $(if $(SYSTEM_TORCH),,constraints.txt)
EXTRAS ?= test,dev

PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: help setup model demo serve test test-all lint format clean

help:
	@echo "make demo      real prompts on a real model, the first phase against the newest"
	@echo "make serve     the newest engine over HTTP, on http://127.0.0.1:8001"
	@echo "make test      lint, types, and the test suite"
	@echo "make test-all  the suite with its slow part"
	@echo "make lint      ruff and mypy alone;  make format  ruff's formatter"
	@echo "make clean     remove the virtual environment and caches of tools"

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@echo "==> Virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) $(VENV)
	@echo "==> Installing packages (once; PyTorch is the large one: minutes on a slow line)"
	@$(PY) -m pip install --disable-pip-version-check $(PIP_FLAGS) \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[$(EXTRAS)]"
	@touch $@

setup: $(READY)

model: $(READY)
	@$(PY) -m shared.model_loader > /dev/null

demo: model
	@$(PY) -m shared.demo

serve: model
	@$(PY) -m phase12_prefix_and_spec serve

test: model lint
	@$(PY) -m pytest

test-all: model lint
	@$(PY) -m pytest -m ""

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "error: run make format"; exit 1; }
	@$(PY) -m mypy

format: $(READY)
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
