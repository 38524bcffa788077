# Two commands on a fresh machine: `make demo` and `make test`. Each makes the virtual environment, installs everything
# and starts the servers it needs, all inside this clone.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NEWEST := .run/newest
PIP_QUIETLY := --quiet --disable-pip-version-check --root-user-action=ignore
SECONDS_OF_DEMO ?= 12

.DEFAULT_GOAL := help
.PHONY: help install demo test test-failed test-newest servers check audit format bench bench-quick faults model clean

help: ## List every target
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

install: $(READY) ## Create .venv and install the project with everything for development

# The stamp comes last: an install that was interrupted is done again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "outrider needs Python 3.11 or newer; set PYTHON=... to one"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	    echo "python3-venv is missing: trying to install it"; \
	    { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } \
	    && rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install $(PIP_QUIETLY) -e '.[dev]'
	@touch $(READY)

demo: $(READY) ## Commit, deliver, kill the broker, lose nothing: the main job on embedded servers
	@$(BIN)/outrider demo --seconds $(SECONDS_OF_DEMO)

# What the tests need and pip does not bring: RabbitMQ, PgBouncer, a browser, promtool, libfaketime, PostgreSQL 14 to 18.
servers: $(READY)
	@mkdir -p .run
	@$(BIN)/python -m outrider.embedded.rabbitmq --install || echo "tests that need RabbitMQ will be skipped"
	@$(BIN)/python -m tests.fixtures.pgbouncer --install || echo "tests that need PgBouncer will be skipped"
	@$(BIN)/python -m tests.fixtures.browser --install || echo "tests that need a browser will be skipped"
	@$(BIN)/python -m tests.fixtures.promtool --install || echo "the test of the alert rules will be skipped"
	@$(BIN)/python -m tests.fixtures.faketime --install || echo "the tests of a clock that is set will be skipped"
	@$(BIN)/python -m tests.fixtures.postgres_versions --install || echo "tests of other PostgreSQL versions will be skipped"

test: servers ## Run all tests against real PostgreSQL, RabbitMQ and Valkey
	@$(BIN)/python -m pytest --basetemp=.run/pytest -n 4 --dist worksteal

test-failed: $(READY) ## Run what failed in the last `make test` once more, one test at a time
	@$(BIN)/python -m pytest --basetemp=.run/pytest --last-failed --last-failed-no-failures none

test-newest: servers ## Run the tests with the newest release of every dependency, where one differs from .venv
	@$(PYTHON) -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python -m pip install $(PIP_QUIETLY) $$($(BIN)/python -m tests.newest requirements)
	@$(NEWEST)/bin/python -m pip install $(PIP_QUIETLY) --no-deps -e .
	@if $(BIN)/python -m tests.newest differs $(NEWEST)/bin/python; then \
	    $(NEWEST)/bin/python -m pytest --basetemp=.run/pytest-newest -n 4 --dist worksteal; fi

check: $(READY) ## Lint (ruff), types (mypy strict) and import rules (import-linter)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory audit

audit: $(READY) ## Known vulnerabilities of what is installed, where an index of advisories can be had
	@mkdir -p .run
	@if timeout 120 $(BIN)/pip-audit --skip-editable --progress-spinner off --timeout 10 > .run/audit.txt 2>&1; then \
	    echo "audit: no known vulnerability; not in the index and so not audited: $$(grep -c 'could not be audited' .run/audit.txt) packages"; \
	elif grep -q 'known vulnerabilit' .run/audit.txt; then grep -v 'could not be audited' .run/audit.txt; exit 1; \
	else echo "audit: no index of advisories can be reached"; fi

format: $(READY) ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## Measure this machine: ratios in one run, written to bench/latest.json
	@$(BIN)/python -m outrider.embedded.rabbitmq --install
	@$(BIN)/python -m bench.java --install || echo "Debezium will not be measured"
	@$(BIN)/python -m bench

bench-quick: $(READY) ## The same with smaller numbers, within two minutes
	@$(BIN)/python -m outrider.embedded.rabbitmq --install
	@$(BIN)/python -m bench.java --install || echo "Debezium will not be measured"
	@$(BIN)/python -m bench --quick

faults: $(READY) ## Kill and cut off everything while messages flow, and count them (DURATION=300 SEED=...)
	@$(BIN)/python -m outrider.embedded.rabbitmq --install
	@$(BIN)/python -m tests.faults --duration $(or $(DURATION),300) $(if $(SEED),--seed $(SEED))

model: $(READY) ## Search all states of the model of relay and scheduler for lost rows and wrong order (a minute)
	@$(BIN)/python -m tests.model.ownership 2 1
	@$(BIN)/python -m tests.model.ownership 3 0
	@$(BIN)/python -m tests.model.ownership 2 2

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .run .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist bench/latest.json bench/venvs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
