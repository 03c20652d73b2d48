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

.PHONY: help setup browser model demo serve bench test test-all test-oldest test-newest suite mutation-score notebooks site lint format clean

help:
	@echo "make demo      real prompts on a real model, the first phase against the newest"
	@echo "make serve     the newest engine over HTTP, on http://127.0.0.1:8001"
	@echo "make bench     every benchmark, small: 20 minutes on two cores, tables and charts in results/bench"
	@echo "make test      lint, types, and the test suite"
	@echo "make browser   a Chromium for the live page's tests, where there is none (Debian, Ubuntu: apt)"
	@echo "make test-all  the suite with its slow part"
	@echo "make test-oldest, make test-newest   the suite on the oldest packages allowed, and on today's newest"
	@echo "make mutation-score   how many small faults in the deciding parts their unit tests find: 10 minutes on two cores"
	@echo "make site      the READMEs and notebooks as a website, in site/;  make notebooks  run them all anew"
	@echo "make lint      ruff and mypy alone;  make format  ruff's formatter"
	@echo "make clean     remove the virtual environment and caches of tools"

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) does not run or is older than Python 3.11; name another: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@echo "==> Virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) $(VENV)
	@echo "==> Installing packages (once; PyTorch is the large one: minutes on a slow line)"
	@$(PY) -m pip install --disable-pip-version-check $(PIP_FLAGS) \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[$(EXTRAS)]"
	@touch $@

setup: $(READY)

# Any Chromium or Chrome will do; the tests find it by these names.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
	  if command -v $$name; then exit 0; fi; \
	done; \
	command -v apt-get > /dev/null || { echo "error: no Chromium or Chrome here, and no apt-get: install one"; exit 2; }; \
	echo "==> Installing Chromium (once)"; \
	[ "$$(id -u)" = 0 ] || SUDO=sudo; \
	$$SUDO apt-get update --quiet=2 && $$SUDO apt-get install --yes --quiet=2 --no-install-recommends chromium > /dev/null

model: $(READY)
	@$(PY) -m shared.model_loader > /dev/null

demo: model
	@$(PY) -m shared.demo

serve: model
	@$(PY) -m phase12_prefix_and_spec serve

bench: model
	@$(PY) -m shared.bench all $(BENCH_FLAGS)

# Two workers for what only computes; then, one by one, what watches the clock.
WORKERS ?= 2
PYTEST := $(PY) -m pytest
test: model lint suite

test-all: model lint
	@$(MAKE) --no-print-directory suite ONLY=

# Each has an environment of its own, which stays; remove .venv-newest to get the newest anew. A part of the suite:
# make test-oldest PYTEST_FLAGS="tests/test_cli.py -k config"
test-oldest:
	@$(MAKE) --no-print-directory suite VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-newest:
	@$(MAKE) --no-print-directory suite VENV=.venv-newest CONSTRAINTS=

# pytest says 5 where it was to run nothing, which is an error; but flags may choose files that are all of one kind.
ONLY ?= not slow and
suite: model
	@$(PYTEST) -n $(WORKERS) --dist loadfile -m "$(ONLY) not alone" $(PYTEST_FLAGS) $(if $(PYTEST_FLAGS),|| [ $$? = 5 ])
	@$(PYTEST) -m "$(ONLY) alone" $(PYTEST_FLAGS) $(if $(PYTEST_FLAGS),|| [ $$? = 5 ])

# mutmut works on a copy: it changes the code, and the copy stays for `mutmut results`, `show` and `browse`.
MUTATION := results/mutation
mutation-score: $(READY)
	@echo "==> Mutation score: about 1,600 mutants, 10 minutes on two cores"
	@$(PY) -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[mutation]"
	@rm -rf $(MUTATION) && mkdir -p $(MUTATION)
	@cp -r pyproject.toml constraints.txt README.md Makefile tests shared phase* $(MUTATION)
	@cd $(MUTATION) && $(abspath $(PY)) -m mutmut run && $(abspath $(PY)) -m tests.mutation_score

notebooks: $(READY)
	@$(PY) -m shared.workshop.notebooks

site: $(READY)
	@echo "==> The course as a website"
	@$(PY) -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[site]"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "read it: $(PY) -m http.server --directory site, then http://localhost:8000"
	@echo "(or open site/index.html; search and the recordings want a server)"

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "error: run make format"; exit 1; }
	@$(PY) -m mypy

format: $(READY)
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
