# Two verbs matter: `make demo` and `make test`.  Both do all the set-up, once.
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test lint types unit machines chaos lowest docs format bench compare lock audit clean

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

help:  ## list the verbs
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
	  || grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST)

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "energate needs Python 3.11 or newer. Name one: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV) (once; a few minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(INSTALLED)  ## create .venv with pinned versions (the other verbs do this too)

demo: $(INSTALLED)  ## train, classify, draw, and run the quick profile of the paper's tables; goes to demo-output/
	@$(RUN) examples/demo.py
	@$(RUN) -m energate bench table1 --profile quick --source generate --jobs 2 --results demo-output/results
	@$(RUN) -m energate bench table2 --profile quick --source generate --jobs 2 --results demo-output/results
	@$(RUN) -m energate report demo-output/results --output demo-output/report.html

serve: $(INSTALLED)  ## the page in a browser: draw a digit, see its energies (http://127.0.0.1:8000)
	@$(RUN) -m energate serve

test: lint types unit  ## lint, types and tests

lint: $(INSTALLED)  ## ruff: rules and format; the layers of the package
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check --quiet .
	@$(VENV)/bin/lint-imports

types: $(INSTALLED)  ## mypy
	@$(RUN) -m mypy

unit: $(INSTALLED)  ## the tests alone
	@$(RUN) -m pytest -q -n auto --dist worksteal

machines: $(INSTALLED)  ## the quick part of the tests with the kernels, threads and orders of other machines
	@$(RUN) tests/machines.py

chaos: $(INSTALLED)  ## promises under attack, without memory and while killed; counts go to benchmarks/results/chaos.jsonl
	@for file in benchmarks/chaos/[a-z]*.py; do echo "== $$file"; \
	  $(RUN) $$file $$([ $$file = benchmarks/chaos/fits.py ] && echo --fresh) || exit 1; done

lowest: $(INSTALLED)  ## the tests of the server and of skops with the lowest versions that they allow
	@$(RUN) tests/lowest.py

docs: $(INSTALLED)  ## build the documentation, its gallery executed; goes to docs/_build/html
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@$(RUN) -m sphinx -W --keep-going -b html docs docs/_build/html

format: $(INSTALLED)  ## rewrite the code in the house format
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: $(INSTALLED)  ## speed and memory, as ratios measured side by side
	@$(RUN) benchmarks/floor.py --short
	@$(RUN) benchmarks/batched.py
	@$(RUN) benchmarks/scoring_memory.py
	@$(RUN) benchmarks/fit.py
	@$(RUN) benchmarks/search.py --configurations 2 8 --epochs 5

compare: $(INSTALLED)  ## accuracy beside other libraries, on real data (ENERGATE_DATA adds sets); goes on where it stopped
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	@$(RUN) benchmarks/tabular.py
	@$(RUN) benchmarks/tables.py --half all
	@$(RUN) benchmarks/one_class.py
	@$(RUN) benchmarks/anomaly.py

lock: $(INSTALLED)  ## write requirements.lock, the hashes of all packages but torch, from the versions in .venv
	@$(RUN) .ci/packages.py lock

audit: $(INSTALLED)  ## the licences of all packages, and advisories about them where a network is there
	@$(RUN) .ci/packages.py licences
	@$(RUN) .ci/packages.py audit

clean:  ## remove the virtual environment and everything generated
	rm -rf $(VENV) demo-output build dist docs/_build docs/auto_gallery docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
