# Every target first makes the virtual environment .venv if it is missing or older than what it is made from.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCHES ?= kernels overhead

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help: ## show these targets
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make the virtual environment .venv

demo: $(INSTALLED) ## train over an emulated 200 Mbit/s link, plainly and compressed
	$(BIN)/thinwire demo

test: $(INSTALLED) ## run all tests
	$(BIN)/pytest

lint: $(INSTALLED) ## check format, style and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(INSTALLED) ## run the short benchmarks; make bench BENCHES=convergence for the long one
	for name in $(BENCHES); do $(BIN)/python bench/$$name.py || exit; done

clean: ## remove everything that was made here
	rm -rf .venv runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "thinwire needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1);" \
			"name another with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
