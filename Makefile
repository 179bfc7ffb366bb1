# Everything runs from nothing: a Python 3.11 or newer and make are all that must be there.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
# A shell that forbids bytecode has every process of a test compile all that it imports: 5 s for each that collects.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin

.PHONY: demo demo-picture programs test test-fast test-pythons promises faults lint fmt bench gpu generate docs pins release clean clean-all

# The main job, on two hosts made here: ends with an answer. Leaves the sandbox to play with.
demo: $(VENV)/program
	@scripts/setup-docker.sh
	@scripts/demo.sh

# Every check that a change must pass, in lanes beside each other. Made up: lint, types, unit, property and simulated
# tests, while the sandbox is built. On real hosts: one course (up, serve, ask, replace, kill a rank, rollback, down),
# the commands of the pages, and a short test each of pull, image push, batch, explain and check; after them the
# contract tests. Then alone what measures its own load. It names what it leaves for `make promises`, and ends with the
# slowest: the whole should stay under 15 minutes.
test:
	@$(MAKE) --no-print-directory --jobs 2 $(VENV)/ready programs
	$(BIN)/python -m tests.run

# Docker, and the programs that the contract tests talk to. One after the other: both may install with apt-get.
programs:
	@scripts/setup-docker.sh
	@scripts/setup-sshd.sh
	@scripts/setup-slurm.sh

# What needs neither Docker nor sshd and takes no time, in under a minute on two cores: the pure core and the units, and
# of the simulation the two that meet most of it. The rest of it is in `make test`. Tests wait for programs that they
# start, so there are more processes than cores.
COURSES := tests/sim/test_everywhere.py tests/sim/test_machine.py
test-fast: $(VENV)/ready
	VCLUSTER_DEPTH=fast $(BIN)/pytest -n 4 --dist worksteal -m "not (deep or alone or slow)" {tests,vllm_cluster/features/*/tests}/{unit,property} $(COURSES)

# The unit lane on each Python of pyproject.toml that this machine has; with ARGS="3.12" on some. Names what it lacks.
test-pythons: $(VENV)/ready
	$(BIN)/python -m tools.pythons $(ARGS)

# Attacks every promise, all of it, and writes docs/promises.md; with ARGS="P31 P34" those of some promises.
promises: $(VENV)/ready programs
	@scripts/setup-viewers.sh
	$(BIN)/python -m tests.promises $(ARGS)

# Plants each fault that a test has above it in a copy of this tree, one at a time, and shows that the test turns red;
# with ARGS="plan/ test_fit" those of some files. For each night: it also names those that no longer apply.
faults: $(VENV)/ready
	$(BIN)/python -m tests.faults $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measures `up` against a by-hand floor, files from one host to eight through faults, and an image to four beside
# `docker save | docker load`: writes docs/performance.md. The second part needs root; it and the third take 20 minutes.
bench: $(VENV)/ready
	@scripts/setup-docker.sh
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.spread
	$(BIN)/python -m tests.bench.images

# Measures a cluster of GPU hosts, made or not: make gpu INVENTORY=inventory.yaml ARGS='--model Qwen/Qwen3-8B --rounds 1'
# writes gpu-report.md and gpu-report.json; `python -m tests.gpu --help` has its options.
gpu: $(VENV)/ready
	@[ -n "$(INVENTORY)" ] || { echo "name the inventory: make gpu INVENTORY=inventory.yaml" >&2; exit 2; }
	$(BIN)/python -m tests.gpu $(INVENTORY) $(ARGS)

# Draws the picture of README from a real run, in a sandbox of its own. Its times are those of this machine: draw it on
# a quiet one.
demo-picture: $(VENV)/ready
	@scripts/setup-docker.sh
	$(BIN)/vcluster sandbox up --dir build/picture
	$(BIN)/python scripts/picture.py build/picture
	$(BIN)/vcluster sandbox down --dir build/picture

# Writes what is made from the code: docs/reference with its JSON schemas and the failures, the example inventory, and
# the golden messages of tests/fixtures/messages.
generate: $(VENV)/ready
	$(BIN)/python -m tools.generate

# Makes a site of the pages in build/site, which works without a web server and without internet: open its index.html.
# A link that leads nowhere ends it.
docs: $(VENV)/docs
	$(BIN)/python -m tools.website

# Renews the pinned wheels of Ray (vllm_cluster/kernel/images/pins), for each Python and processor: by pip, in minutes.
pins: $(VENV)/ready
	$(BIN)/python -m tools.pins

# Builds wheel and sdist in dist/, checks them, uses the wheel from an empty environment, and installs it by uv, uvx and
# pipx; writes what it needs (SBOM) and SHA256SUMS beside it; uploads nothing.
# With ARGS=--demo the main job runs from the wheel too, which needs Docker and minutes.
release: $(VENV)/ready
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,release]'
	$(BIN)/python -m tools.release $(ARGS)

# The program alone, which is all that the demo runs; and with the tools, which take twice as long.
$(VENV)/program: EXTRAS :=
$(VENV)/program: SECONDS := 15
$(VENV)/ready: EXTRAS := [dev]
$(VENV)/ready: SECONDS := 30
# Python compiles what it imports, 3 of 11 s of processor time; pip would compile all of it, in one process.
$(VENV)/program $(VENV)/ready: pyproject.toml constraints.txt
	@echo "installing vcluster$(if $(EXTRAS), and its tools) in $(VENV), about $(SECONDS) s"
	@$(PYTHON) scripts/patiently.py $(SECONDS) $(SHELL) -c "$(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt --editable '.$(EXTRAS)'"
	@touch $(VENV)/program $@

$(VENV)/docs: $(VENV)/ready
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

# Removes the sandbox's hosts; what was built stays for the next time.
clean:
	@if [ -x $(BIN)/vcluster ]; then $(BIN)/vcluster sandbox down; fi

# Removes also what the sandbox built, and the environment.
clean-all:
	@if [ -x $(BIN)/vcluster ]; then $(BIN)/vcluster sandbox down --purge; fi
	@rm -rf $(VENV) sandbox
