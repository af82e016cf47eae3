# make quickstart   install, prepare SmolLM2-135M, train it for a few steps
# make test         install what tests need, then lint, types and all tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/pip install -q --no-warn-conflicts
PINNED = -c requirements/constraints.txt
MODEL ?= models/smollm2
RUN ?= runs/quickstart
WORKERS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help install dev quickstart test lint types clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Relax needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

# A machine with an NVIDIA driver takes SGLang with its CUDA dependencies; any other takes the set in requirements/.
$(VENV)/.installed: pyproject.toml requirements/cpu.txt requirements/cpu-no-deps.txt requirements/cpu-engine.txt requirements/constraints.txt | $(BIN)/python
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	  echo "installing for a GPU"; $(BIN)/pip install -q -e '.[gpu]'; \
	else \
	  echo "installing for a CPU (a few minutes)"; \
	  $(PIP) -r requirements/cpu-torch.txt && \
	  $(PIP) $(PINNED) -r requirements/cpu.txt -e . && \
	  $(PIP) --no-deps -r requirements/cpu-no-deps.txt && \
	  $(PIP) --no-deps --upgrade --target $(VENV)/engine-only -r requirements/cpu-engine.txt ; \
	fi
	@touch $@
	@echo "installed into $(VENV)"

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing what tests need"
	@$(PIP) $(PINNED) -e '.[dev]'
	@touch $@

install: $(VENV)/.installed
	@echo "next: make quickstart"
dev: $(VENV)/.dev

$(MODEL)/config.json: $(VENV)/.installed
	@echo "preparing the model (538 MB)"
	@$(BIN)/relax models smollm2 $(MODEL)

quickstart: $(MODEL)/config.json
	@MODEL=$(MODEL) RUN=$(RUN) RELAX=$(BIN)/relax bash deployments/quickstart.sh

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
