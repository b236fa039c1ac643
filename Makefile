# Needs make, git and Python 3.11 or 3.12 with venv; everything else goes into .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := draftproof draft_service target_service

.DEFAULT_GOAL := help
.PHONY: help setup model test lint pytest exact demo protos docs bench fmt clean prometheus dashboards pictures

help:
	@echo "make demo    prepare the embedded model, start target and draft, answer a prompt"
	@echo "make test    lint, types, layering, protocol lint and the tests (under 30 minutes on 2 cores)"
	@echo "make exact   every statistical test through the real stack, and failover under load (long)"
	@echo "make bench   costs and speed, as ratios from one run"
	@echo "make protos  generate draftproof/v1 from protos/"
	@echo "make docs    renew the module list of docs/architecture.md and the tables of docs/metrics.md"
	@echo "make dashboards  write Grafana's dashboards and alert rules from their code"
	@echo "make pictures    draw the dashboards into docs/pictures from a live cluster (needs npm and chromium)"
	@echo "make fmt     format the code"
	@echo "make clean   remove the environment and every cache"

# Pins come from constraints.txt; the stamp is older than a changed project file, so the environment follows it.
$(STAMP): pyproject.toml constraints.txt
	@echo "installing what constraints.txt pins into $(VENV), a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test,dev,bench]'
	touch $@

setup: $(STAMP)

model: $(STAMP)
	$(BIN)/python -m draftproof.engine.embedded

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint

# prometheus and promtool, for the tests of rules and dashboards
prometheus:
	deploy/prometheus/unpack.sh

# Long modules first, so that short ones fill both workers to the end. The end-to-end tests keep both cores busy alone.
pytest: model prometheus
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder \
		tests/integration tests/exact tests/unit $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/e2e $(PYTEST_ARGS)

test: lint
	$(MAKE) --no-print-directory pytest

exact: model
	$(BIN)/python -m pytest -m "exact_family or slow" --timeout=3600 $(PYTEST_ARGS)

demo: model
	$(BIN)/draftproof demo

bench: model
	$(BIN)/python -m bench

protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. \
		protos/draftproof/v1/*.proto

docs: $(STAMP)
	$(BIN)/python docs/modules.py
	PYTHONPATH=. $(BIN)/python docs/metrics.py

dashboards: $(STAMP)
	$(BIN)/python -m deploy.grafana.source

# npm and chromium are needed as well
pictures: $(STAMP) prometheus
	$(BIN)/python -m deploy.grafana.pictures

fmt: $(STAMP)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find $(PACKAGES) tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
