# Two commands do everything on a fresh machine: `make up` and `make test`.
# Python 3.11 or later is needed; make test also wants Debian's rabbitmq-server, redis-server and postgresql
# (or servers given by SLUICE_TEST_RABBITMQ_URL, SLUICE_TEST_REDIS_URL, SLUICE_TEST_POSTGRES_URL, or Docker with compose).

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: up test bench lint format types imports check lock clean

up: $(READY)  ## run everything in one process, with a demo agent to chat with
	$(BIN)/sluice up --demo

test: $(READY)  ## the whole suite
	$(BIN)/pytest

check: lint types imports test  ## what CI runs

bench: $(READY)  ## the pipeline against the baseline; takes about five minutes
	$(BIN)/python -m bench

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

lock: $(READY)  ## resolve the dependencies anew
	$(BIN)/uv pip compile --quiet pyproject.toml --group dev --generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements.lock

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
