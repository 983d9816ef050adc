# Everything a checkout needs, with nothing but Python >= 3.11, its venv module and make. `make help` lists the targets.
#
# Seven environments, each rebuilt only when a file it depends on changes:
#   .venv-demo    the command and the coordinator's extras; no torch       make demo
#   .venv         the same with torch, Ray and development tools            make test, lint, types
#   .venv-lowest the lowest versions that pyproject.toml allows     make test-lowest
#   .venv-proto   the pinned protobuf compiler                              make proto, test
#   .venv-peers   Flower and OpenDP, to be measured beside                  make bench-peers, flower-test
#   .venv-docs    Sphinx                                               make docs
#   .venv-fuzz    atheris, where there is a wheel of it                     make fuzz, fuzz-long
PYTHON ?= python3
PIP_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
# A folder of tests/, such as secagg or client/joining: its tests alone.
ROOM ?=
LOWEST_TESTS := secagg mechanisms wire runtime authority server cli/test_command.py lab/test_demo.py
# Three on two cores: what talks over the network waits a third of its time.
WORKERS ?= 3
# A worker that crashes ends the run: pytest-xdist 3.8 would wait for ever for the tests of its group.
IN_WORKERS := -n $(WORKERS) --dist loadgroup --max-worker-restart 0
PYTEST := env -u PYTHONDONTWRITEBYTECODE SORDINO_PROTO_PYTHON=.venv-proto/bin/python .venv/bin/python -m pytest $(IN_WORKERS)
SHELL := /bin/sh
.DEFAULT_GOAL := help
, := ,
.DELETE_ON_ERROR:
BENCH_ARGS ?=
KILLS ?= 500
COORDINATOR_KILLS ?= 5
SCRIPTS ?= 10000
SCRIPTS_ARGS ?=
ADVERSARY_ARGS ?=
TIMING_ARGS ?=
METHODS_ARGS ?=
EDGE_ARGS ?=
LOAD_ARGS ?=
COMPOSE_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
.PHONY: help demo test test-long test-lowest lint types bench bench-peers flower-test lora-test kill-run scripts adversary timing methods compose-test fuzz fuzz-long proto docs docs-links study-docs wheel constraints clean distclean edge-test load-test load-short load-tables soak scale-test

define CHECK_PYTHON =
@"$(PYTHON)" -c pass 2>/dev/null || \
	{ echo 'make: cannot run "$(PYTHON)". Install Python >= 3.11, or name one: $(NAME_ONE)' >&2; exit 1; }
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "make: Sordino needs Python >= 3.11; $$("$(PYTHON)" --version 2>&1) is too old. Name another: $(NAME_ONE)" >&2; exit 1; }
@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo 'make: $(PYTHON) lacks its venv module. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
endef
NAME_ONE := make $(MAKECMDGOALS) PYTHON=python3.12

# $(1): environment, $(2): what pip installs. An environment whose interpreter has gone is made anew.
define BUILD_ENVIRONMENT =
@echo 'make: building $(1)$(3)'
@$(1)/bin/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv --clear $(1)
@$(1)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) $(2)
@touch $(1)/.stamp
endef

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo 'Variables: PYTHON=python3.12, DEMO_ARGS="--rounds 3", PYTEST_ARGS="-k shamir", WORKERS=3, BENCH_ARGS="--json",'
	@echo '           KILLS=500, COORDINATOR_KILLS=5, FUZZ_SECONDS=60, FUZZ_TARGETS="roster card",'
	@echo '           ADVERSARY_ARGS="--only ring", SCRIPTS=10000, SCRIPTS_ARGS="--naive --budget 500",'
	@echo '           PIP_ARGS (given to pip install)'

demo: .venv-demo/.stamp ## one machine plays all parts: a private training run with a live panel and a report
	@.venv-demo/bin/python -m sordino demo $(DEMO_ARGS)

test: .venv/.stamp .venv-proto/.stamp ## all tests but the long ones, those with real processes included
	@$(PYTEST) $(PYTEST_ARGS) $(if $(ROOM),tests/$(ROOM))

test-long: .venv/.stamp .venv-proto/.stamp ## the long tests: examples, load tests, whole studies, large samples
	@$(PYTEST) -m long $(PYTEST_ARGS) $(if $(ROOM),tests/$(ROOM))

test-lowest: .venv-lowest/.stamp ## tests of the cores, the ports and the demo with the lowest versions of all libraries
	@.venv-lowest/bin/python -m pytest $(IN_WORKERS) -m '' $(PYTEST_ARGS) $(addprefix tests/,$(LOWEST_TESTS))

lint: .venv/.stamp ## ruff, rules and layout
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check -q . || { echo 'make: run .venv/bin/python -m ruff format .' >&2; exit 1; }

types: .venv/.stamp ## strict mypy
	@.venv/bin/python -m mypy

bench: .venv-demo/.stamp ## each hot path beside its limit on this machine; fails when a bound is broken
	@.venv-demo/bin/python -m sordino bench all $(BENCH_ARGS)

bench-peers: .venv-demo/.stamp .venv-peers/.stamp ## the same work by Flower and OpenDP, in the same run (some minutes)
	@.venv-demo/bin/python -m sordino bench peers $(BENCH_ARGS)

flower-test: .venv-peers/.stamp ## sordino.flower on grids that bend, in Flower's simulation and over SuperNodes (seven minutes)
	@.venv-peers/bin/python -m pytest $(IN_WORKERS) tests/test_groups.py tests/flower tests/adversary/test_visits.py $(PYTEST_ARGS)

lora-test: .venv/.stamp ## examples/lora in a short form; adds peft and transformers to .venv (180 MB)
	@.venv/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[torch,peft]'
	@.venv/bin/python -m pytest tests/examples -m long -k lora $(PYTEST_ARGS)

kill-run: .venv/.stamp ## kill client processes KILLS times at random instants, and check what they sent and wrote (some minutes)
	@nice .venv/bin/python -m tests.crashes.kill_run --kills $(KILLS) --coordinator-kills $(COORDINATOR_KILLS)

fuzz: .venv-fuzz/.stamp ## each decoder and phase for FUZZ_SECONDS under a coverage-guided fuzzer
	@nice .venv-fuzz/bin/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

fuzz-long: ## the same with ten minutes each (some hours)
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600

adversary: .venv/.stamp ## coordinators and participants that cheat, and what naive ones lose (two minutes)
	@.venv/bin/python -m tests.adversary $(ADVERSARY_ARGS)

timing: .venv/.stamp ## when offers arrive, and how well that tells what training came to (half an hour, a quiet machine)
	@.venv/bin/python -m tests.timing.offer_times $(TIMING_ARGS)
	@.venv/bin/python -m tests.timing.offer_times --offset 1.0 $(TIMING_ARGS)

methods: .venv/.stamp ## every method, clip rule and statistic over the real protocol; METHODS_ARGS=--large: the papers' models too
	@.venv/bin/python -m tests.methods $(METHODS_ARGS)

edge-test: .venv-demo/.stamp ## an arm64 client in 256 MB, a participant behind 2 Mbit/s (Docker, root; ten minutes the first time)
	@OPENBLAS_NUM_THREADS=1 .venv-demo/bin/python deploy/edge/edge_test.py $(EDGE_ARGS)

load-test: .venv-demo/.stamp ## a thousand participants, 10 % leave and 5 % are late, against the project's bounds (ten minutes)
	@.venv-demo/bin/python -m sordino loadtest --scenario sordino/lab/loadtest/scenarios/acceptance.toml $(LOAD_ARGS)

load-short: .venv-demo/.stamp ## every scenario of sordino/lab/loadtest/scenarios with 24 participants (five minutes)
	@for each in calm mobile storm crash cheats diurnal acceptance; do \
		echo "load-short: $$each"; \
		.venv-demo/bin/python -m sordino loadtest --scenario sordino/lab/loadtest/scenarios/$$each.toml --clients 24 --processes 2 \
			--dim 10000 $(LOAD_ARGS) || exit 1; \
	done

scale-test: .venv/.stamp ## gateways, nodes and workers that are killed, cheats and thousands of thin participants behind gateways (Docker, root; an hour)
	@SORDINO_TEST_GATEWAYS=2 .venv/bin/python -m pytest -n $(WORKERS) -q tests/adversary/test_scripts.py -k test_the_real_side_keeps_every_promise
	@SORDINO_TEST_GATEWAYS=2 .venv/bin/python -m pytest -n $(WORKERS) -q tests/processes/test_stopped_coordinator.py tests/server/test_coordinator_ledger.py
	@.venv/bin/python -m sordino loadtest --scenario sordino/lab/loadtest/scenarios/gateways.toml $(LOAD_ARGS)
	@.venv/bin/python -m tests.deploy.scale_test
	@.venv/bin/python -m sordino loadtest --thin --clients 1000 --processes 2 --dim 100000 --rounds 3 --gateways 2 --workers 2
	@.venv/bin/python -m sordino loadtest --thin --clients 4000 --processes 4 --dim 10000 --rounds 5 --gateways 4 --deadline 300
	@.venv/bin/python -m sordino loadtest --thin --clients 10000 --processes 4 --dim 10000 --rounds 3 --gateways 4 --deadline 300 --adversary curious

soak: .venv-demo/.stamp ## 2,000 rounds of 20 participants with dropouts: does the coordinator grow? (half an hour)
	@.venv-demo/bin/python -m sordino loadtest --scenario sordino/lab/loadtest/scenarios/soak.toml $(LOAD_ARGS)

load-tables: .venv-demo/.stamp ## completed rounds and times for 5 to 30 % leaving at each phase, both ways (nine minutes)
	@.venv-demo/bin/python -m sordino.lab.loadtest.tables --clients 50 --rounds 3 --deadline 5 $(LOAD_ARGS)

scripts: .venv/.stamp ## SCRIPTS random scripts for both sides; with SCRIPTS_ARGS=--naive, checks taken out
	@nice .venv/bin/python -m tests.secagg.random_scripts --scripts $(SCRIPTS) $(SCRIPTS_ARGS)

compose-test: .venv/.stamp ## the compose project with kills, a cut network and restarts; needs a container engine (some minutes)
	@.venv/bin/python -m tests.deploy.compose_test $(COMPOSE_ARGS)

proto: .venv-proto/.stamp ## regenerate the stubs in wire/ from proto/
	@PYTHON=.venv-proto/bin/python wire/generate.sh

study-docs: .venv/.stamp ## rewrite the table in docs/study_file.md from the model
	@.venv/bin/python -m tests.server.study_docs

docs: .venv-docs/.stamp ## the site, in build/site; a warning, such as a broken link, is an error
	@.venv-docs/bin/python -m sphinx -q -E -W --keep-going -c docs -d build/doctrees . build/site
	@echo 'make: the site is build/site/index.html'

docs-links: .venv-docs/.stamp ## ask every external link of the site whether it still leads somewhere (network)
	@.venv-docs/bin/python -m sphinx -q -b linkcheck -c docs -d build/doctrees . build/links

wheel: .venv/.stamp ## sdist and wheel, in dist/, checked
	@rm -rf dist && .venv/bin/python -m build --no-isolation
	@.venv/bin/python -m twine check --strict dist/*

constraints: ## resolve all extras anew and rewrite constraints.txt
	$(CHECK_PYTHON)
	@echo 'make: resolving the newest versions that pyproject.toml allows'
	@rm -rf build/constraints && "$(PYTHON)" -m venv build/constraints
	@build/constraints/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) '.[server,torch,ray,peft,dev]'
	@{ sed -n '/^#/p' constraints.txt; \
	   build/constraints/bin/python -m pip list --format=freeze --exclude pip --exclude sordino --disable-pip-version-check \
	   | sed -e 's/+[A-Za-z0-9.]*$$//' -e '/^nvidia-/d' -e '/^cuda-/d' -e '/^triton/d' | LC_ALL=C sort -f; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints

clean: ## remove caches and build outputs, keep the environments
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## remove the environments as well
	@rm -rf .venv .venv-demo .venv-lowest .venv-proto .venv-peers .venv-docs .venv-fuzz

.venv-demo/.stamp: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv-demo,-c constraints.txt setuptools -e '.[server]')

.venv/.stamp: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv,-c constraints.txt -e '.[server$(,)torch$(,)ray$(,)dev]', (with torch: this can take minutes))

.venv-lowest/.stamp: pyproject.toml tests/lowest_versions.py
	$(CHECK_PYTHON)
	@mkdir -p build && "$(PYTHON)" tests/lowest_versions.py server data dev > build/lowest.txt
	$(call BUILD_ENVIRONMENT,.venv-lowest,-c build/lowest.txt -e '.[server$(,)data$(,)dev]')

.venv-proto/.stamp: proto/requirements.txt
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv-proto,-r proto/requirements.txt)

.venv-peers/.stamp: sordino/lab/bench/peers/requirements.txt pyproject.toml
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv-peers,-r sordino/lab/bench/peers/requirements.txt -e '.[server]', (with torch and ray: this can take minutes))

.venv-docs/.stamp: docs/requirements.txt pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv-docs,-c constraints.txt -r docs/requirements.txt -e '.[server]')

.venv-fuzz/.stamp: tests/fuzz/requirements.txt pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	$(call BUILD_ENVIRONMENT,.venv-fuzz,-c constraints.txt -r tests/fuzz/requirements.txt -e '.[server]')
