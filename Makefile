# Everything works on a fresh machine with Python 3.11 or later and pip; `make` prints this list.

# The first interpreter that is new enough; `make PYTHON=...` takes another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# Images often set it; every process would compile the package anew, half a second each.
unexport PYTHONDONTWRITEBYTECODE
# Its library is built here, which needs the headers.
KERBEROS := $(if $(shell command -v krb5-config),[kerberos])
LOCKED := arrow delta demo etcd iceberg oidc otel rocksdb schema spark
PORTABLE := arrow etcd schema
ROUNDS ?= 5
ONLY ?=
ROWS ?=
TESTS ?= tests
WORKERS ?= auto
CYCLES ?= 1000
SECONDS_EACH ?= 15
KILLS ?= 108
CUTS ?= 200
SEEDS ?= 0..999
OPERATIONS ?= 0
DELAYS ?= 4
ENTRIES_EACH ?= 1
CASES ?= 10000
ENTRIES ?= 1000000
FRAMES ?= 10000000

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-spark test check check-types check-tidy format bench bench-streams bench-background bench-console bench-many-ledgers bench-processes bench-revisions limits limits-hour adversary simulate simulate-mutants simulate-small simulate-coverage kubernetes torture spark-torture fuzz mutants soak interop-full interop-pulsar clean bench-spark contact-sheet contact-sheet-docs docs docs-serve docs-versions picture lock pythons release release-address

help:  ## Print this list.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: .venv/.ready  ## Make .venv with the package and the development tools.

# A system Python without ensurepip makes a venv only without pip, which its own pip then fills.
# What is imported is compiled then; compiling all that is installed takes a minute.
.venv/.ready: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; try make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv >/dev/null 2>&1 \
		|| { rm -rf .venv && $(PYTHON) -m venv --without-pip .venv \
			&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --editable '.$(KERBEROS)' --group dev
	@touch $@

# One of each, as `kubectl apply` takes them: of a release that is called as the chart is.
kubernetes:  ## Write deploy/kubernetes, what the Helm chart renders by itself; takes helm.
	@for name in admin certificates quorumbook tokens; do \
		helm template quorumbook deploy/helm --namespace quorumbook --kube-version 1.34.0 \
			--set namespace.create=true --show-only templates/$$name.yaml 2>/dev/null \
			| sed -e '1s/.*/# Rendered from deploy\/helm by `make kubernetes`./' -e '/^# Source: /d' -e 's/[[:space:]]*$$//' >deploy/kubernetes/$$name.yaml || exit 1; \
	done

demo: setup  ## Write 336,776 real events, kill a bookie, heal, read every copy back.
	$(BIN)/quorumbook demo

demo-spark: setup  ## Flights through Spark, streams and tables while things die; a picture of it.
	$(BIN)/quorumbook spark demo

test: setup  ## Run all tests; TESTS=tests/unit runs some.
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(TESTS)

pythons: setup  ## Import and test on every other Python found, and on the oldest dependencies; ALL=1: more.
	$(BIN)/python -m tools.pythons $(if $(ALL),--all) $(if $(FETCH),--fetch)

check: setup  ## Lint, types, import directions, tidiness.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs 2 check-types check-tidy

# Each keeps one core busy for half a minute and more.
check-types:
	$(BIN)/mypy

check-tidy:
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/tidy

format: setup  ## Format and mend what can be mended mechanically.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Measure beside the peer and the floor (about an hour; ROUNDS=, ONLY=).
	$(BIN)/python bench/run.py --rounds $(ROUNDS) --only '$(ONLY)'
	test -n '$(ONLY)' || $(BIN)/python bench/streams.py --rounds $(ROUNDS)

bench-streams: ROUNDS = 3
bench-streams: setup  ## Measure streams alone, beside DistributedLog and other logs (a quarter of an hour; ROUNDS=).
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python bench/streams.py --rounds $(ROUNDS)

bench-revisions: setup  ## Measure revision BEFORE= and this one in turn (20 s a round; ROUNDS=).
	$(BIN)/python bench/revisions.py '$(BEFORE)' --rounds $(ROUNDS)

bench-background: setup  ## Measure garbage collection, and compaction beside a writer (three minutes).
	$(BIN)/python bench/background.py

bench-many-ledgers: ROUNDS = 3
bench-many-ledgers: setup  ## Measure many ledgers written in turn, and 100,000 open (ten minutes; ROUNDS=).
	$(BIN)/python bench/many_ledgers.py --rounds $(ROUNDS)

bench-processes: ROUNDS = 3
bench-processes: setup  ## Measure 1, 2 and 3 bookies of one machine (a minute a round; ROUNDS=).
	$(BIN)/python bench/processes.py --rounds $(ROUNDS)

bench-spark: ROUNDS = 3
bench-spark: setup  ## Measure Spark beside the client alone (Java 17; a quarter of an hour; ROUNDS=, ROWS=).
	$(BIN)/python bench/spark.py --rounds $(ROUNDS) --rows '$(ROWS)'

torture: setup  ## Kill, pause and cut off processes, cut power, damage files, fail calls (two hours).
	directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && mkdir -p docs/reports \
		&& PYTHONPATH=tests $(BIN)/python tests/faults/kill_cycles.py --cycles $(CYCLES) \
			--data-dir "$$directory/torture" --report docs/reports/torture.md \
		&& PYTHONPATH=tests TMPDIR="$$directory" $(BIN)/python tests/faults/power_cuts.py \
			--cuts $(CUTS) --report docs/reports/power-cuts.md \
		&& PYTHONPATH=tests TMPDIR="$$directory" $(BIN)/python tests/faults/damage.py --cases $(CASES) \
			--report docs/reports/damage.md \
		&& PYTHONPATH=tests TMPDIR="$$directory" $(BIN)/python tests/faults/failing_calls.py \
			--report docs/reports/failing-calls.md

spark-torture: setup  ## Kill Spark queries and bookies KILLS=108 times in 27 ways; goes on where it ended (MINUTES=60).
	PYTHONPATH=tests $(BIN)/python tests/faults/spark_kills.py --kills $(KILLS) \
		$(addprefix --only ,$(ONLY)) $(addprefix --minutes ,$(MINUTES)) \
		$(if $(ONLY),,--report docs/reports/spark-kills.md)

fuzz: setup  ## Send bookies FRAMES=10000000 frames of strangers beside a writer, and kill them.
	PYTHONPATH=tests $(BIN)/python -m security.fuzz --frames $(FRAMES) --report docs/reports/fuzz.md

mutants: setup  ## Plant each bug of tests/mutants in a copy of the sources; its test must find it (ONLY=areas).
	$(BIN)/python tests/mutants/run.py --only '$(ONLY)' --report docs/reports/mutants.md

soak: setup  ## Write and read ENTRIES=1000000 over TLS 1.2 and 1.3, and compare every byte.
	directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && for v in TLSv1.2 TLSv1.3; do \
		rm -rf "$$directory"/*; $(BIN)/python tests/security/tls_soak.py --entries $(ENTRIES) \
			--version $$v --directory "$$directory" || exit 1; done

interop-full: setup  ## Run the peer against ours in every combination; writes docs/reports/interop.md.
	INTEROP=full $(BIN)/python -m pytest tests/interop

interop-pulsar: setup  ## Apache Pulsar's broker on our bookies, every scenario; writes docs/reports/pulsar.md.
	PULSAR=full $(BIN)/python -m pytest tests/brokers

simulate: setup  ## Run lives of a simulated cluster (SEEDS=0..999, OPERATIONS=50: short ones); writes docs/reports/simulation.md. It goes on where it ended.
	$(BIN)/python -m quorumbook.sim run --seeds $(SEEDS) --operations $(OPERATIONS) --jobs 2 --keep build/simulation.json \
		--report docs/reports/simulation.md --mutants docs/reports/simulation-mutants.json

simulate-mutants: setup  ## Plant each bug of tests/sim/mutants, and count the seeds that find it (SEEDS=0..299).
	PYTHONPATH=tests $(BIN)/python -m sim.mutants.run --seeds $(SEEDS) --jobs 2 \
		--only '$(ONLY)' --report docs/reports/simulation-mutants.json

simulate-coverage: setup  ## Which lines seeds alone run (SEEDS=0..39); writes docs/reports/simulation-coverage.md.
	PYTHONPATH=tests $(BIN)/python -m sim.coverage --seeds $(SEEDS) \
		--report docs/reports/simulation-coverage.md

simulate-small: setup  ## Every run of three bookies, a writer and a recovery (DELAYS=4 ENTRIES_EACH=1).
	PYTHONPATH=tests $(BIN)/python -m sim.small_model --delays $(DELAYS) --entries $(ENTRIES_EACH)

adversary: setup  ## Attack by what lies between grammar and volume; writes docs/reports/adversary.md.
	PYTHONPATH=tests $(BIN)/python -m security.adversary --seconds $(SECONDS_EACH) \
		--report docs/reports/adversary.md

limits: setup  ## Attack a bookie by volume (half an hour); writes docs/reports/limits.md.
	PYTHONPATH=tests $(BIN)/python -m security.limits.run --report docs/reports/limits.md

limits-hour: setup  ## Attack a bookie in all ways for an hour; writes docs/reports/limits-hour.md.
	PYTHONPATH=tests $(BIN)/python -m security.limits.run --hour \
		--report docs/reports/limits-hour.md

# Material tells everyone of another site generator; CONTRIBUTING.md says why it is this one.
docs docs-serve docs-versions: export NO_MKDOCS_2_WARNING = 1
docs: setup  ## Build the site into build/site (half a minute); anything wrong is an error.
	$(BIN)/python -m mkdocs build --strict

docs-serve: setup  ## Show the site on http://127.0.0.1:8000 while you write.
	$(BIN)/python -m mkdocs serve

docs-versions: docs  ## Lay this version's site beside others, with a selector (DIRECTORY=build/versions).
	$(BIN)/python -m tools.website.versions $(or $(DIRECTORY),build/versions)

bench-console: setup  ## Measure the console and commands with 20,000 ledgers (Chromium; three minutes).
	$(BIN)/python -m bench.console --report docs/reports/console.md

contact-sheet: setup  ## Take a picture of every page of the console (Chromium; DIRECTORY=contact-sheet).
	PYTHONPATH=tests $(BIN)/python -m admin.contact_sheet $(or $(DIRECTORY),contact-sheet)

contact-sheet-docs: docs  ## Take a picture of every page of the site (Chromium; DIRECTORY=contact-sheet).
	PYTHONPATH=tests $(BIN)/python -m docs.contact_sheet $(or $(DIRECTORY),contact-sheet)

picture: setup  ## Run the demo, and draw what it prints into docs/images/demo.svg.
	$(BIN)/python -m tools.website.recording

# Kerberos is not locked: it is built where its headers are.
lock: setup  ## Choose the newest versions for development and CI, and the oldest that are taken.
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command 'make lock' --group dev pyproject.toml --output-file requirements.lock \
		$(foreach extra,$(LOCKED),--extra $(extra))
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --resolution lowest-direct \
		--custom-compile-command 'make lock' --no-annotate pyproject.toml \
		--output-file requirements-oldest.txt $(foreach extra,$(PORTABLE),--extra $(extra))

release: setup  ## Build wheel and sdist twice, compare and check them; uploads nothing.
	$(BIN)/python -m tools.release

release-address: setup  ## Once, before the first release: write the project's ADDRESS=https://... down.
	$(BIN)/python -m tools.release --address '$(ADDRESS)'

clean:  ## Remove .venv and everything generated.
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
