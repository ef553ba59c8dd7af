# Two commands matter:
#   make demo    set everything up and answer questions from the Python language reference, with citations
#   make test    set everything up and run every check
# Both need Python 3.11 or later with pip, and make. All else goes into $(VENV). Second runs skip the set-up.

PYTHON      ?= python3
VENV        ?= .venv
# torch is installed first, at one version, so that no later range can pull another build of it.
# For a build of your own choice: make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH       ?= torch==2.13.0
CONSTRAINTS ?= .ci/constraints.txt
ARGS        ?=
# Most tests are small: two processes of one thread each are faster than one of two.
WORKERS     ?= 2

BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet
INPUT := pyproject.toml $(CONSTRAINTS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-stores test-browser docs soak setup-demo setup-dev lint format clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

demo: setup-demo ## answer questions from the Python language reference (ARGS="--question '...' --mode ra-nest")
	$(BIN)/nest-engine demo $(ARGS)

test: setup-dev ## every check: lint, format, types, import contracts, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-stores: setup-dev ## both adapters over every supported vector store (large packages)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev,stores]'
	NEST_STORES=1 $(BIN)/python -m pytest tests/langchain/stores tests/llama_index/stores $(ARGS)

test-browser: setup-dev ## answers in a real browser (apt-get install chromium, or CHROMIUM=/its/path)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev,browser,playground]'
	NEST_BROWSER=1 $(BIN)/python -m pytest tests/browser $(ARGS)

docs: setup-dev ## the documentation site, into .site/ (fails where a link leads nowhere)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev,docs]'
	$(BIN)/mkdocs build --strict

soak: setup-dev ## the long versions of some tests
	NEST_SOAK=1 $(BIN)/python -m pytest -s tests/engine/test_lossless.py tests/trust $(ARGS)

lint: setup-dev ## the checks without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup-demo: $(VENV)/.nest-demo ## only install what the demo needs
setup-dev: $(VENV)/.nest-dev ## only install what the tests need

$(VENV)/.nest-torch: $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "nest-rag needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; torch is the large part)"
# Some systems ship venv without ensurepip: then the system's own pip fills the environment.
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 \
	  || $(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; }
	$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.nest-demo: $(VENV)/.nest-torch $(INPUT)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[demo,sparse,documents,cli]'
	@touch $@

$(VENV)/.nest-dev: $(VENV)/.nest-torch $(INPUT)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@ $(VENV)/.nest-demo

clean: ## remove the environment and all caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist .site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
