# Needs Python 3.11 or later and make; everything else is brought by `make setup`.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$name; break; fi; done)
CONSTRAINTS := .ci/constraints.txt
BIN := .venv/bin
# Without bytecode every process of a test compiles all that it imports, and pytest rewrites every assert anew.
unexport PYTHONDONTWRITEBYTECODE
SUBJECTS := throughput order latency recovery scheduled failover barrier checkback consumers metrics tracing idle verify spark
STAMP := .venv/.set-up
# What `make demo` needs of it: a third of the packages. Where the whole environment is there, it is used.
DEMO_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),.venv/.set-up-demo)
TOOLS := .venv/tools
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --constraint $(CONSTRAINTS)

KAFKAS ?= 3.9.1 4.0.0
KAFKA_TESTS ?= tests/e2e/test_coordinator_crash.py tests/e2e/test_chaos.py tests/contract/test_fencing.py tests/contract/test_isolation.py

SPARKS ?= 4.0.0 4.1.1 4.2.0
SPARK_TESTS ?= tests/spark

SEED ?=
MINUTES ?= 1
INPUTS ?= 1000000
HISTORIES ?= 10000
WORKERS ?= 4
# Two for each of two cores: some of these tests wait.
CHECK_WORKERS ?= 4
NIGHTLY ?= none
STAGES ?=
FILES ?=
ARGS ?=
# Where pytest writes its figures for the table of `make nightly`.
REPORT := $(if $(JUNIT),--junitxml=$(JUNIT))

DOCKER ?= docker
REGISTRY ?=
IMAGE_OPTIONS ?=
IMAGES := coordinator shop spark
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' txlayer/__init__.py)

.PHONY: demo test tests nightly check coverage fix integration e2e simulate chaos restarts fuzz differential differential-spark mutation newcomer pythons kafkas sparks object-store container mysql bench images docs setup form lint compiled jars rights kills audit sbom clean

# CONSOLE=1 shows the day in a browser, and leaves it open at the end. Spark starts from an archive of classes, if `make jars` made one.
demo: $(DEMO_STAMP)
	@$(BIN)/python -m txlayer broker fetch
	@$(BIN)/txlayer-spark jars
	SPARK_SUBMIT_OPTS="$$($(BIN)/python -c 'from tests.support.class_archive import quick_spark; print(quick_spark())') $$SPARK_SUBMIT_OPTS" $(BIN)/python examples/shop/demo.py $(if $(CONSOLE),--console)

# One pytest at the end, so that the last lines are its summary. NIGHTLY=3/60 runs the third of sixty shares of the nightly tests, too.
test: setup jars
	@$(MAKE) --no-print-directory --jobs 2 lint compiled
	$(BIN)/python -m pytest --nightly $(NIGHTLY) --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS) $(REPORT)

# FILES="tests/docs/test_demo.py …": these, whole.
tests: setup jars
	$(BIN)/python -m pytest $(FILES) $(ARGS) $(REPORT)

# All that is worth hours, in stages, with one table at the end (tests/nightly.py has them); STAGES="chaos fuzz" takes some.
nightly: setup jars
	$(BIN)/python -m tests.nightly $(STAGES)

# Before every commit: what needs no server and no waiting. Nothing in it is shared, so any worker takes any test. The order is
# random; none of these tests draws from Python's own dice, so they are not set anew three times a test. The types are checked
# beside them, by one core.
CHECKED := tests/repo tests/selftest tests/unit tests/console tests/contract tests/simulation tests/docs/test_links.py tests/docs/test_pages.py tests/docs/test_glossary.py
QUICK := --nightly none --hypothesis-profile=check --randomly-dont-reset-seed -m "not kafka and not sql and not spark and not slow"
check: form
	@mkdir -p build
	@$(BIN)/mypy >build/mypy.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest $(QUICK) --numprocesses $(CHECK_WORKERS) --dist worksteal $(CHECKED); tests=$$?; \
	wait $$types || tests=1; cat build/mypy.txt; exit $$tests

# The lines and branches of txlayer that `make check` reaches.
coverage: setup
	$(BIN)/python -m pytest $(QUICK) --numprocesses $(CHECK_WORKERS) --dist worksteal --cov --cov-report=term:skip-covered $(CHECKED)

fix: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

integration: setup jars
	$(BIN)/python -m pytest tests/contract tests/integration

e2e: setup jars
	$(BIN)/python -m pytest tests/e2e

# One world as a table (SEED=n), or as many as there is time for (MINUTES=n); WORLD=consumers for those of consumers, ways for their other ways,
# unkind and unkind-consumers for clusters that do all that Kafka may do. RESTART=c0::7 lets a process die in it.
simulate: setup
	$(BIN)/python -m tests.simulation.explore $(if $(WORLD),--world $(WORLD)) \
	  $(if $(SEED),--seed $(SEED) $(if $(RESTART),--restart $(RESTART)),--minutes $(MINUTES))

# A test of these takes as long as its numbers say: four hours at most. Any other test is stopped after 15 minutes.
chaos restarts differential-spark rights kills: export PYTEST_TIMEOUT := 14400

# Random faults on three real brokers for MINUTES, and a table of what happened; `make test` runs it until half of the kinds of faults have happened.
# E2E_SEED=n replays the plan of a run.
chaos: setup jars
	E2E_CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest --quiet --capture=no tests/e2e/test_chaos.py $(REPORT)

# Each component ten times in a row under load, and the brokers; `make nightly` runs it bounded.
restarts: setup jars
	E2E_RESTARTS=10 E2E_BROKER_RESTARTS=10 $(BIN)/python -m pytest --quiet --capture=no tests/e2e/test_restarts.py $(REPORT)

# Spark's ledger on random histories, against the reference model, and run by run against one run (`make differential-spark COUNT=5000 SEED=1000`);
# `make test` takes some of the first, `make nightly` some of both.
COUNT ?= 2000
differential-spark: setup jars
	TXLAYER_DIFFERENTIAL_COUNT=$(COUNT) TXLAYER_DIFFERENTIAL_SEED=$(or $(SEED),0) $(BIN)/python -m pytest --quiet \
	  tests/spark/test_against_model.py::test_random_histories_are_judged_alike \
	  tests/spark/test_run_by_run.py::test_random_histories_run_by_run $(REPORT)

# Mutations of real bytes for everything that reads bytes; what fails becomes part of tests/fuzz/corpus.
fuzz: setup
	$(BIN)/python -m tests.fuzz.run --inputs $(INPUTS)

# The judges held against each other on random histories: HISTORIES fresh ones, from SEED on where it is given.
differential: setup
	$(BIN)/python -m tests.reference.differential --histories $(HISTORIES) $(if $(SEED),--seed $(SEED))

# The code, broken in one place at a time: every mutant must make a test fail. Goes on where it was interrupted.
# PART='txlayer.coordinator*' tries only those.
mutation: setup
	$(BIN)/python -m mutmut run $(if $(PART),'$(PART)')
	$(BIN)/python -m mutmut results
	$(if $(JUNIT),$(BIN)/python -m mutmut export-cicd-stats && mv mutants/mutmut-cicd-stats.json $(JUNIT))

# A new user: from nothing to a message of their own by what README says, in a new folder with a new HOME (some minutes).
newcomer: setup
	$(BIN)/python -m tests.docs.newcomer

# Python 3.11 to 3.13, each that is on PATH: the core's tests, and a service's in memory from the wheel.
pythons: setup
	TXLAYER_TEST_PYTHONS=all $(BIN)/python -m pytest tests/integration/test_pythons.py $(REPORT)

# Every other release of Kafka that README calls supported; some four minutes each, by Maven.
kafkas: setup jars
	@for release in $(KAFKAS); do \
		echo "== Kafka $$release"; \
		home="$$($(BIN)/python -m tests.support.kafka_release $$release)" && TXLAYER_KAFKA_HOME="$$home" \
			$(BIN)/python -m pytest -p no:randomly $(KAFKA_TESTS) $(REPORT) || exit 1; \
	done

# Spark's tests on every release of Spark whose connector is locked; each is installed beside the environment, and found first.
# Here Spark compiles the plans of all tests; `make test` does so for the commands alone.
sparks: setup jars
	@for release in $(SPARKS); do \
		echo "== Spark $$release"; folder="build/spark/$$release"; \
		test -d "$$folder" || { $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet \
			--build-constraint $(CONSTRAINTS) --target "$$folder.part" "pyspark[connect]==$$release" "pandas<3" && \
			mv "$$folder.part" "$$folder"; } || exit 1; \
		TXLAYER_TEST_COMPILED=1 PYTHONPATH="$(CURDIR)/$$folder" $(BIN)/python -m pytest --nightly none $(SPARK_TESTS) $(REPORT) || exit 1; \
	done

# Spark's jobs on an object store: an S3 of the tests' own, installed beside the environment.
object-store: setup jars build/moto
	$(BIN)/python -m pytest tests/spark/test_object_store.py $(REPORT)

# In CI the tests call for it, when one of them is in the share of the day.
build/moto:
	@$(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --build-constraint $(CONSTRAINTS) \
		--target $@.part "moto[s3,server]==5.2.5"
	@mv $@.part $@

# The pytest plugin's `container` on a Docker engine that the tests start; as root, with dockerd and iproute2.
container: setup jars
	$(BIN)/python -m pytest tests/integration/test_plugin_container.py $(REPORT)

# The tests of MariaDB on MySQL, which is installed from Debian unstable into a folder of its own; as root.
mysql: setup
	TXLAYER_TEST_MYSQL=1 $(BIN)/python -m pytest tests/integration/sql -k "mariadb or mysql or time_out_rolled" $(REPORT)

bench: setup jars
	@failed=0; for subject in $(SUBJECTS); do \
		echo "== $$subject"; $(BIN)/python bench/$$subject.py || failed=1; \
	done; exit $$failed

# REGISTRY=mirror/ for the base image; IMAGE_OPTIONS for what reaches package mirrors from here (docs/howto/deploy.md).
images:
	@for image in $(IMAGES); do \
		echo "== localhost/txlayer/$$image:$(VERSION)"; \
		DOCKER_BUILDKIT=1 $(DOCKER) build --file compose/Dockerfile --target $$image --tag localhost/txlayer/$$image:$(VERSION) \
			--build-arg REGISTRY=$(REGISTRY) $(IMAGE_OPTIONS) . || exit 1; \
	done

# Every right of every role of topics/acl, left out one at a time: the role must fail. `make test` does it for producers.
rights: setup jars
	EVERY_RIGHT=1 $(BIN)/python -m pytest --quiet tests/integration/security/test_roles.py $(REPORT)

# The sink of Spark killed at each of its steps; `make nightly` kills it at four of them.
kills: setup jars
	EVERY_KILL=1 $(BIN)/python -m pytest --quiet tests/spark/test_sink_kills.py $(REPORT)

# Known vulnerabilities of what is installed, asked at osv.dev; not part of `make test`, because their number changes
# without a change here, and it needs the network.
audit: $(TOOLS)
	@mkdir -p build
	@$(TOOLS)/bin/pip-audit --vulnerability-service osv --requirement $(CONSTRAINTS) --no-deps --disable-pip \
		--progress-spinner off >build/audit.txt 2>&1 && cat build/audit.txt || { \
		if grep -q "ConnectionError\|Timeout" build/audit.txt; then \
			echo "error: osv.dev cannot be reached from here, nothing was judged; its words are in build/audit.txt" >&2; exit 3; \
		fi; cat build/audit.txt >&2; exit 1; }

# What a development environment holds, and every extra, in CycloneDX's form.
sbom: $(TOOLS)
	@mkdir -p build
	$(TOOLS)/bin/cyclonedx-py requirements $(CONSTRAINTS) --output-reproducible --output-file build/sbom.json
	@echo "sbom: $$(grep -c '"bom-ref": "requirements' build/sbom.json) packages in build/sbom.json"

# An environment of their own: what they need is nothing that txlayer needs.
$(TOOLS): .ci/audit.txt
	@test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement .ci/audit.txt
	@touch $(TOOLS)

# The pages as a site in build/site; every link must lead somewhere.
docs: setup
	$(BIN)/python -m mkdocs build --strict --config-file .ci/mkdocs.yml

setup: $(STAMP)

form: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

lint: form
	$(BIN)/mypy

# In a fresh checkout the tests are compiled beside `lint`, which needs one core: else each worker does it for itself. Pytest tells of errors later.
compiled: setup
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only --quiet >/dev/null 2>&1 || true

# Jars of Kafka and of Spark's connector, and a Java, once per user; instant when they are there.
jars: setup
	@$(BIN)/python -m txlayer broker fetch
	@$(BIN)/txlayer-spark jars
	@$(BIN)/python -m tests.support.class_archive

# A stamp is written last: an interrupted set-up is done again.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(MAKE_ENVIRONMENT)
	$(PIP) --build-constraint $(CONSTRAINTS) --editable ".[local,sql,spark,pydantic,msgspec,metrics,console,otel,testing]" --group dev
	@touch $(STAMP)

.venv/.set-up-demo: pyproject.toml $(CONSTRAINTS)
	$(MAKE_ENVIRONMENT)
	$(PIP) --build-constraint $(CONSTRAINTS) --editable ".[local,sql,spark,console]"
	@touch $@

define MAKE_ENVIRONMENT
@test -n "$(PYTHON)" || { echo "txlayer needs Python 3.11 or later: install it, or name one with make PYTHON=..." >&2; exit 2; }
@$(PYTHON) -m venv .venv || { echo "Python's venv is missing: install it (on Debian the package python3-venv)" >&2; exit 2; }
$(PIP) --quiet --upgrade pip
endef

clean:
	rm -rf mutants .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
