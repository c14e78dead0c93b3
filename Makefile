# make demo | make test | make check | make bench        (make help lists all)
# Each target sets up what it needs: .venv holds the packages at the versions of constraints.txt.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
# Spark must find the same interpreter on driver and executors, whatever the shell has set.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# Some images forbid bytecode. pytest would then translate all tests again in each of its processes,
# 6 s of CPU every time.
unexport PYTHONDONTWRITEBYTECODE

# Two processes side by side; make test PROCESSES=0 takes one, which a debugger can stop.
PROCESSES ?= 2
PYTEST = $(BIN)/python -m pytest -q -n $(PROCESSES)
CORE := not cluster and not notebook and not hadoop and not faults

.PHONY: help setup demo test test-core test-full test-faults fault-table fit-table argument-table test-hadoop test-kerberos check check-airflow lint \
	types layers quick fmt torch hashes bench bench-scale house clean

help:
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY) ## install everything into .venv (what the other targets call)

$(READY): setup.py constraints.txt
	@tests/prerequisites.sh "$(PYTHON)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@echo "Installing packages into .venv (about 800 MB to download the first time, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]' & \
		pid=$$!; start=$$(date +%s); \
		while kill -0 $$pid 2>/dev/null; do sleep 4; kill -0 $$pid 2>/dev/null && echo "  installing, $$(( $$(date +%s) - start )) s"; done; wait $$pid
	@touch $(READY)

demo: setup ## tile the sample images, train by two workers, write a report with pictures
	@$(BIN)/python jobs/demo.py

test: setup ## what a change can break: test-core, and a journey each on YARN and in a notebook
	@$(PYTEST)

test-core: setup ## tests without a cluster, Hadoop and notebooks: quick ones, Spark, TensorFlow
	@$(PYTEST) -m "$(CORE) and not full"

test-full: setup ## every test: also each notebook, cluster, fault, way to submit; before a change is done
	@$(PYTEST) -m ""

test-faults: setup ## kill workers, executors, server and driver of runs, and the driver of a night
	@$(BIN)/python -m pytest -q -m faults tests

fault-table: setup ## write tests/faults/README.md from the tests
	@$(BIN)/python -m tests.faults.table

fit-table: setup ## write distkeras_grid/trainers/fit.md from the tests
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.contracts.fit_table

argument-table: setup ## write distkeras_grid/trainers/arguments.md from the classes of the trainers
	@$(BIN)/python -m tests.contracts.argument_table

test-hadoop: setup ## all that runs on a real HDFS and YARN, which the tests start
	@$(BIN)/python -m pytest -q -m hadoop tests

# gssapi is compiled, and a complete environment is packed for the nodes: it has one of its own.
KERBEROS_READY := build/kerberos/.ready

test-kerberos: $(KERBEROS_READY) ## all that runs on an HDFS and YARN with Kerberos, in an environment of its own
	@PYSPARK_PYTHON=$(CURDIR)/build/kerberos/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/build/kerberos/bin/python \
		build/kerberos/bin/python -m pytest -q -m "" tests/hadoop/test_kerberos.py tests/distkeras_grid/test_tickets.py

$(KERBEROS_READY): setup.py constraints.txt
	@tests/prerequisites.sh "$(PYTHON)"
	@for program in kinit krb5-config cc; do command -v $$program >/dev/null 2>&1 || { \
		echo "make test-kerberos needs $$program. Debian: apt-get install krb5-user libkrb5-dev gcc" >&2; exit 1; }; done
	@test -x build/kerberos/bin/python || "$(PYTHON)" -m venv build/kerberos
	@echo "Installing packages into build/kerberos (as many as into .venv, a few minutes) ..."
	@build/kerberos/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off \
		-c constraints.txt -e '.[dev,kerberos]'
	@touch $@

check-airflow: setup ## import the Airflow example with Airflow, in an environment of its own (minutes)
	@test -x build/airflow/bin/airflow || { "$(PYTHON)" -m venv build/airflow && \
		echo "Installing Airflow into build/airflow ..." && \
		build/airflow/bin/python -m pip install --quiet --disable-pip-version-check 'apache-airflow==3.3.*'; }
	@AIRFLOW_HOME=$(CURDIR)/build/airflow/home build/airflow/bin/python tests/jobs/import_dags.py jobs/schedule

check: setup ## the gate before a commit
	@$(MAKE) --no-print-directory -j3 lint types layers
	@$(MAKE) --no-print-directory quick

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports --no-cache

# A third process works while others wait for a clock, as a tenth of these tests do.
quick: PROCESSES = 3
quick: setup ## tests without a JVM and without TensorFlow, but for slow ones
	@$(PYTEST) -m "$(CORE) and not spark and not tensorflow and not full and not slow"

fmt: setup ## format the sources
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

# On Linux, PyPI's wheels of PyTorch need 5 GB, and most of it is CUDA. The index of its makers has wheels for
# CPUs. If it cannot be reached, pip takes PyPI's.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_READY := build/torch/.ready

torch: $(TORCH_READY) ## install PyTorch into build/torch, which sees the packages of .venv

$(TORCH_READY): setup.py | $(READY)
	@test -x build/torch/bin/python || $(BIN)/python -m venv build/torch
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$(build/torch/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	@echo "Installing PyTorch into build/torch ..."
	@build/torch/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off \
		--timeout 30 --retries 1 --extra-index-url $(TORCH_INDEX) -c constraints.txt -e '.[torch]'
	@touch $@

# A test compares them with setup.py and constraints.txt.
hashes: ## write requirements-hashed.txt, with the SHA-256 of every file that may be installed
	@test -x build/uv/bin/uv || { "$(PYTHON)" -m venv build/uv && build/uv/bin/pip install --quiet --disable-pip-version-check uv; }
	@build/uv/bin/uv pip compile setup.py --quiet --extra tensorflow --constraints constraints.txt --generate-hashes \
		--universal --python-version 3.11 --no-annotate --custom-compile-command "make hashes" --output-file requirements-hashed.txt

bench: setup torch ## print the benchmarks; FASHION_MNIST=FOLDER names the four IDX .gz files
	@build/torch/bin/python -m tests.benchmarks

house: setup ## print the size of each package, the longest files, and the calls of one commit
	@$(BIN)/python -m tests.benchmarks.house

bench-scale: setup ## plan, publish and search for near-duplicates among 100,000 images that are not there
	@$(BIN)/python -m tests.benchmarks.scale

clean: ## remove .venv and everything generated
	@rm -rf .venv build dist *.egg-info demo-report spark-warehouse
