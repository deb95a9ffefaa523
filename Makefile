# Needs make and Python 3.11 or newer; the rest is installed into .venv. `make PYTHON=python3.13 venv` chooses one.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PROTOS := $(wildcard proto/iop_shared/wire/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help venv proto fmt lint test test-llama demo demo-llm bench check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/.installed ## set up .venv with everything for development (quick when nothing changed)

proto: venv ## write shared/iop_shared/wire/v1 anew from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=shared --pyi_out=shared $(PROTOS)

fmt: venv ## format the code and mend what ruff can mend
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: venv ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

test: venv ## every test that needs no real engine
	$(BIN)/pytest -m "not real_llama"

test-llama: .venv/.llama ## the tests against a real llama.cpp server with real weights
	IOP_REQUIRE_LLAMA=1 $(BIN)/pytest -m real_llama

demo: venv ## an edge and two nodes on this machine at work, in half a minute
	$(BIN)/iop demo

demo-llm: .venv/.llama ## a chat with a real model on this machine's CPU, through the whole path
	$(BIN)/python deploy/demo_llm.py

bench: venv ## CPU per token and added latency, beside the same load sent directly
	$(BIN)/python bench/relay.py

check: lint ## lint, and that generated code, docs and packaging agree with the source
	$(BIN)/pytest tests/architecture

clean: ## remove .venv, caches and build outputs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist bench/out

.venv/.installed: pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error no Python 3.11 or newer found: install one, or run make PYTHON=/path/to/python3))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' && touch $@

.venv/.llama: requirements-llama.txt .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-llama.txt && touch $@
