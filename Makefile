# SPDX-License-Identifier: GPL-3.0-or-later
# The one front door. Each target installs what it needs and says what it does; the work is in tests/.
PYTHON ?= python3
ENGINE ?= fake
RUN = .venv/bin/python tests/run.py
BENCH = .venv/bin/python tests/bench/bench.py
.DEFAULT_GOAL := help
.PHONY: help system venv images demo demo-down lint sanity units build molecule test test-all bench clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

system: ## Install Debian packages that are missing (root on Debian or Ubuntu; elsewhere say which)
	@$(PYTHON) tests/bench/bench.py doctor --install

venv: ## Make .venv with the tools
	@$(PYTHON) tests/gates/venv.py .venv

images: | system ## Build the container images of Debian 12 and 13
	@$(PYTHON) tests/bench/bench.py images

demo: | system ## Deploy a MiniMax-M2.5-shaped model on two containers (ENGINE=real: the real vLLM, CPU build)
	@$(MAKE) --no-print-directory -j2 venv images
	@$(RUN) demo --engine=$(ENGINE)

demo-down: ## Remove the demo's containers
	@$(BENCH) down demo

lint: | venv ## Style, types, ansible-lint, documentation, changelog
	@$(RUN) lint

sanity: | venv ## ansible-test sanity
	@$(RUN) sanity

units: | venv ## Unit tests, on each Python that is here
	@$(RUN) units

build: | venv ## Build the artefact, install it elsewhere, run from there
	@$(RUN) build

molecule: | system venv ## Molecule scenarios (SCENARIO=deploy: one; KEEP=1: leave the containers up)
	@$(RUN) molecule $(if $(SCENARIO),--scenario=$(SCENARIO)) $(if $(KEEP),--keep)

test: | system venv ## All of the above but the demo, with a table at the end
	@$(RUN) test

test-all: | system venv ## make test, and what is too long for every run
	@$(RUN) test-all

bench: | system venv ## Figures of speed, as ratios
	@$(RUN) bench

clean: ## Remove containers, images, venvs and caches
	@if [ -x .venv/bin/python ]; then $(BENCH) purge; fi
	rm -rf .venv .venv-* .cache .ansible build dist tests/output .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
