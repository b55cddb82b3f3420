# Two commands for newcomers: `make demo` and `make test`. Each installs what it needs first.
SHELL := /bin/bash
BIN := .venv/bin
DEMO_ARGS ?=
PYTEST_ARGS ?=
# Half of the suite waits for processes of its own; the other half is gangs that compute, of which more at a time than there are cores
# only run into limits. Files stay whole: their fixtures are gangs. A second core's worth also on one.
TEST_PROCESSES := $(shell nproc | awk '{print ($$1 < 2 ? 2 : $$1 > 8 ? 8 : $$1)}')
TEST_WORKERS ?= --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: install demo test check bench gpu-bundle soak clean

# Where Python may not keep bytecode, each of a thousand processes would compile Phalanx anew: a third of a server's start.
install: ## environment in .venv; quick when nothing changed
	@scripts/install
	@$(BIN)/python -m compileall -q src

demo: install ## the main job: DEMO_ARGS="--seed S --kill-step N" or --no-kill
	@$(BIN)/python examples/tiny-lm/demo.py $(DEMO_ARGS)

# Beside the types, which take one core: else each of the processes below would compile every test, where Python keeps no bytecode.
test: install ## style, types, room order, then every test
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -qq $(PYTEST_ARGS) > /dev/null 2>&1 & compiling=$$!; \
	  $(MAKE) --no-print-directory check || exit; wait $$compiling; \
	  $(BIN)/python -m pytest $(TEST_WORKERS) $(PYTEST_ARGS)

check: install ## ruff, mypy --strict, import-linter, tidy
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@$(BIN)/python -m pytest -q tests/test_tidy.py
	@echo "check: ruff, mypy --strict, import-linter and tidy are green"

bench: install ## every benchmark, quick form; PHALANX_TRACES=DIR names the folder of public traces that three of them need
	@[ -d "$$PHALANX_TRACES" ] || { echo "make bench: set PHALANX_TRACES to the folder with openb/, muri/, philly/ and itp/ (docs/simulator.md)"; exit 2; }
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file --quick || exit 1; done

gpu-bundle: install ## the wheels that a GPU machine without a network lacks, in .gpu-bundle: see docs/speed.md
	@scripts/gpu-bundle

soak: install ## the long form of the tests: 200 random faults in one run, the kill test over many steps and ranks, 50,000 seeds of the simulation, three times the examples of each property
	@PHALANX_SOAK=1 $(BIN)/python -m pytest tests/e2e $(PYTEST_ARGS)
	@PHALANX_SOAK=1 $(BIN)/python -m pytest $(TEST_WORKERS) --ignore tests/e2e $(PYTEST_ARGS)
	@$(BIN)/python -m tests.simulation --seeds 0:50000

clean: ## removes the environment, the demo's folder and caches
	@if [ -d .demo/home ] && [ -x $(BIN)/phalanx ]; then PHALANX_HOME=.demo/home $(BIN)/phalanx down --force || true; fi
	@rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
