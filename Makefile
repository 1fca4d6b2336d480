# make demo: see it work.  make test: check everything.  Both set up .venv first, once.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# -qq hides warnings (such as a configured wheel folder that is missing), never errors.

.PHONY: help setup demo test test-all bench check format clean

help:
	@echo "make demo      set up, then run the whole story on generated data"
	@echo "make test      set up, lint, types, tests (minutes)"
	@echo "make test-all  the same with the slow tests"
	@echo "make bench     install the peers and compare with them"
	@echo "make format    rewrite the code in the house layout"
	@echo "make clean     remove caches and build output (not .venv)"

# Installed state is keyed on the content of what describes it, not on file times, so a fresh checkout with a
# cached .venv needs no network. A .venv copied from another folder still points there: it is made anew.
setup:
	@wanted="$(CURDIR) $$(cat pyproject.toml constraints.txt | cksum)"; \
	if [ "$$(cat $(VENV)/installed 2>/dev/null)" = "$$wanted" ]; then exit 0; fi; \
	echo "Setting up $(VENV) (some minutes the first time)"; \
	if ! grep -qsF "$(CURDIR)/$(VENV)" $(BIN)/pip; then \
	  for python in python3.11 python3 python python3.12 python3.13; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	    python=; \
	  done; \
	  if [ -z "$$python" ]; then echo "flatout needs Python 3.11 or later; none was found" >&2; exit 1; fi; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi; \
	$(PIP) install -c constraints.txt -e '.[dev]' && echo "$$wanted" > $(VENV)/installed

demo: setup
	@$(BIN)/flatout demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Each worker begins with one half of the tests, so that what the tests of a file share is made once.
PYTEST := $(BIN)/pytest -q -n 2 --dist worksteal

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST)

# litdata asks for torchvision, which fails to import beside a CPU build of torch and is not needed here: so it
# comes without its dependencies, and those that it does import are part of the extra.
bench: setup
	@$(PIP) install -c constraints.txt -e '.[bench]'
	@$(PIP) install -c constraints.txt --no-deps litdata
	$(BIN)/flatout bench prepare --peers
	$(BIN)/flatout bench load --peers
	$(BIN)/flatout bench augment --peers
	$(BIN)/flatout bench train
	$(BIN)/flatout bench train --accelerator-ms 10
	$(BIN)/flatout bench guides
	$(BIN)/flatout bench clinic
	$(BIN)/flatout bench tune

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
