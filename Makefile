# `make help` prints what there is to make. PYTHON names the interpreter (3.11 or newer) that the environment is made with.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: setup demo test lint protos serve bench load soak security sandbox-image base-image images clean help

setup: .venv/installed ## make the environment in .venv

.venv/installed: pyproject.toml protos/build.py $(shell find protos -name '*.proto')
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip && $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup ## fetch the embedded model, start both services, and watch one task fail, be repaired and pass
	$(BIN)/codemend run @tests/data/demo/task.md --tests tests/data/demo/test_solution.py --hide-tests --attempts 8

test: setup ## run all tests, two at a time (CI=true: a missing prerequisite is a failure, not a skip)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: setup ## check format, style, types, layers, contracts and shell scripts
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports
	$(BIN)/buf lint protos && $(BIN)/buf format --diff --exit-code protos && $(BIN)/yamllint --strict .
	$(BIN)/shellcheck .ci/run .ci/engine deploy/docker/base deploy/docker/images deploy/docker/sandbox/build deploy/docker/postgres/start

protos: setup ## make the stubs anew after a change of a .proto file
	$(BIN)/python protos/build.py

serve: setup ## start both services on loopback
	$(BIN)/codemend serve

bench: setup ## compare with bare processes, bubblewrap, docker and peers, in one run (about 6 min)
	$(BIN)/python tests/bench/run.py

load: setup ## 1,000 scripted runs on SQLite and on PostgreSQL, and what codemend adds to each node (about 5 min)
	$(BIN)/python tests/load/runs.py && $(BIN)/python tests/bench/runs.py

soak: setup ## 20,000 mixed jobs: right verdicts, and nothing may leak (at most 15 min)
	$(BIN)/python tests/load/soak.py

security: setup ## attack every kind of cell that can be had here, and print what held (CI=true: all must be there)
	$(BIN)/python tests/security/run.py

sandbox-image: setup ## build the image of docker cells from Debian packages, with no container registry
	PYTHON=$(BIN)/python deploy/docker/sandbox/build $(ENVIRONMENT)

base-image: ## import the bases of all images from Debian packages, each once
	deploy/docker/base orchestrator sandbox postgres

images: setup ## build the images of both services and of a trial database (deploy/README.md)
	PYTHON=$(BIN)/python deploy/docker/images

clean: ## remove the environment, the stubs and all caches
	rm -rf .venv dist build out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find protos -name '*_pb2*.py*' -delete; find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## print this
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15
