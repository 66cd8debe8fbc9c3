# Every target sets itself up first: .ci/setup makes .venv with what the target needs, once, and then costs milliseconds.
# Its choices are variables: make setup EXTRAS=torch,jax,dev MPI=system PYTHON=python3.12 TORCH_BACKEND=cpu

SHELL := bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo practical bench bench-full bench-history bench-gpu quick test test-all test-gpu test-engines legacy-test coverage check fix house verbs lab lessons site lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; sed -n 's/^#   \([A-Z_]*=.*\)/  \1/p' .ci/setup

setup: ## make .venv with everything: pinned packages, this project, and mpiexec (choices below)
	@.ci/setup

.NOTPARALLEL: # there is one .venv
.PHONY: for-lessons for-lab for-checks for-tests
for-lessons: ; @NEEDS=torch,lessons .ci/setup
for-lab: ; @NEEDS=torch,lessons,lab .ci/setup
for-checks: ; @NEEDS=torch,dev .ci/setup
for-tests: ; @NEEDS=everything .ci/setup

demo: for-lessons ## set-up and the first lesson on two ranks, about 2 minutes
	@.venv/bin/python -m workbench.course.demo $(ARGS)

practical: for-lessons ## the practical session: 1 and 2 ranks side by side
	@.venv/bin/python benchmarks/practical.py $(ARGS)

bench: for-tests ## every peer in the same run, some minutes: tables and a picture in benchmarks/results
	@.venv/bin/python benchmarks/bench.py $(ARGS)

bench-full: for-tests ## … with all sizes and 2 and 4 ranks, an hour at most
	@.venv/bin/python benchmarks/bench.py --full $(ARGS)
	@.venv/bin/python benchmarks/bench.py --frameworks

bench-history: for-tests ## what the last commits' benchmarks say, row by row, and which row got worse
	@.venv/bin/python benchmarks/history.py $(ARGS)

bench-gpu: for-tests ## what only a GPU can show, some minutes: right results, bandwidth, overhead; to benchmarks/results
	@.venv/bin/python benchmarks/gpu_report.py $(ARGS)

setup-tests: for-tests ## what some tests need of the system, with apt-get: a browser, ssh, Slurm, containers; and Pyodide
	@.ci/system
	@.ci/pyodide

quick: for-tests ## style, types, and the tests that start no process, about 2 minutes
	@.ci/quick $(ARGS)

test: for-tests ## every property once, the checks too, about 12 minutes on two cores (ARGS="-k ring": what pytest chooses, at once)
	@.ci/test $(ARGS)

test-all: for-tests ## … with more ranks, other ways, mixtures and longer rounds, more than an hour
	@.ci/test --all $(ARGS)

test-gpu: for-tests ## the tests that need a GPU and cupy; without them it says so and is done
	@OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/gpu -m gpu -n 4 $(ARGS)

test-engines: check ## clusters of Spark and Ray on this machine, and the chart as pods; installs them, and Java
	@EXTRAS=+torch,tensorflow,jax,lessons,site,dev,spark,ray,kubernetes .ci/setup
	@.ci/system engines
	@.ci/test -n 1 --dist loadfile -m 'engines or pods' $(ARGS)

legacy-test: ## MXNet, Estimator and Keras 2.15, in an environment of their own, .venv-legacy
	@.ci/test-legacy $(ARGS)

coverage: for-tests ## which lines the fast tests run, some minutes: a table, and pages in .coverage/html
	@.ci/coverage $(ARGS)

mutants: for-tests ## which faults, planted one at a time, the tests let through, hours: build/mutants.md (ARGS="--count 20")
	@.venv/bin/python .ci/mutants.py $(ARGS)

verbs: for-checks ## write the verbs from .ci/verbs.toml, and print which framework has which: the table in docs/reference/verbs.md
	@.venv/bin/python .ci/verbs.py

house: for-checks ## rooms, floors, arrows and lines of the package (ARGS=--arrows lists them)
	@.venv/bin/python .ci/house.py $(ARGS)

check: for-checks ## style, layout and types
	@.ci/check

fix: for-checks ## format, and mend what ruff can mend
	@ruff format . && ruff check --fix .

lab: for-lab ## JupyterLab on the notebooks, for this machine and you alone
	@.ci/lab $(ARGS)

lessons: for-tests ## build notebooks/, exercises/ and solutions/ from lessons/
	@.venv/bin/python -m workbench.course.build $(ARGS)
	@.venv/bin/python .ci/items.py

site: for-tests ## static pages from the built lessons, in build/site (ARGS=--instructors: with the solutions; --few: three lessons, for a look)
	@.venv/bin/python -m workbench.course.site $(ARGS)

slides: for-tests ## slides with notes, and for print the hand-outs, from the built lessons, in build/slides (ARGS=03: one)
	@.venv/bin/python -m workbench.course.slides $(ARGS)

lock: ## resolve pyproject.toml into requirements.lock (UPGRADE=1: to the newest versions)
	@.ci/setup lock

clean: ## remove caches and build products; .venv* stay (rm -r .venv*)
	rm -rf build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './.venv*' -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -print0 | xargs -0 rm -rf
