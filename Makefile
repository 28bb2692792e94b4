# Two commands: `make run PROMPT="..."` answers with a real model, `make test` runs the tests.
# Both create .venv and install what they need.

PYTHON ?= python3
MODEL ?= smollm2:135m
PROMPT ?= Why is the sky blue?
# as typed: a dollar sign in it is not make's
export PROMPT := $(value PROMPT)
VENV := .venv
KERNELS := $(wildcard $(addprefix src/forerun/kernels/native/,*.cpp *.h sources.py))
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: run test

run: $(VENV)/.installed
	@$(VENV)/bin/forerun run $(MODEL) "$$PROMPT"

# Tests of one process run side by side; one by one those that start processes of their own, and
# those whose drafts are as deep as the clock says.
ONE_BY_ONE := tests/api tests/e2e tests/unit/engine
PYTEST := $(VENV)/bin/python -m pytest -m "not slow"

test: $(VENV)/.installed-dev
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(PYTEST) -n auto --maxprocesses 4 --dist loadfile $(addprefix --ignore=,$(ONE_BY_ONE))
	$(PYTEST) $(ONE_BY_ONE)
endif

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(KERNELS) | $(VENV)/bin/python
	@echo "Installing forerun into $(VENV) (once; torch is a large download) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	@touch $@
