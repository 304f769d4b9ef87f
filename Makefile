# Two commands: `make demo` and `make test`. Each sets up all it needs and may be repeated.
#
#   TORCH_INDEX=URL   where to find CPU builds of torch; without it pip takes its default, which on
#                     most Linux machines is a CUDA build of several gigabytes
#   WORKERS=N         `make test` with so many processes side by side; three keep two cores busy
#   ENGINE=transformers   `make demo` with `transformers serve` instead of SGLang

PYTHON ?= python3
TORCH_INDEX ?=
ENGINE ?= sglang
WORKERS ?= 3
ENVS := $(CURDIR)/.envs
MAKE_VENV := PYTHONPATH=. $(PYTHON) remote/payloads/venv.py
LOCKS := runbook/locks
export OMP_NUM_THREADS := 1

.PHONY: help demo test check soak clean python system dev operator serve oracles
help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: operator  ## the whole pipeline on this machine, in ./demo
	@ENVS=$(ENVS) ENGINE=$(ENGINE) TORCH_INDEX=$(TORCH_INDEX) sh scripts/demo.sh

test: dev serve oracles system check  ## set up, then lint, types, import contracts, and all tests
	RUNBOOK_SERVE_PYTHON=$(ENVS)/serve/bin/python DFLASH_ORACLE_PYTHON=$(ENVS)/oracles/bin/python \
	  $(ENVS)/dev/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: dev serve system  ## long campaigns: all faults, many more kills (RUNBOOK_KILLS, _FAULTS, _DECISIONS, _SEED)
	RUNBOOK_KILLS=$${RUNBOOK_KILLS:-1000} RUNBOOK_FAULTS=$${RUNBOOK_FAULTS:-5} RUNBOOK_DECISIONS=$${RUNBOOK_DECISIONS:-600} \
	  $(ENVS)/dev/bin/python -m pytest --timeout 7200 tests/faults tests/dflash/test_generate_kills.py
	RUNBOOK_TRANSFER_BYTES=1073741824 RUNBOOK_LOG_BYTES=10737418240 $(ENVS)/dev/bin/python -m pytest --timeout 7200 tests/remote/test_transfer.py tests/remote/test_logs.py
	RUNBOOK_SOAK=1 $(ENVS)/dev/bin/python -m pytest --timeout 7200 tests/runbook/tui/test_soak.py
	RUNBOOK_SOAK=1 RUNBOOK_SERVE_PYTHON=$(ENVS)/serve/bin/python $(ENVS)/dev/bin/python -m pytest --timeout 7200 tests/runbook/serving tests/runbook/test_two_hosts.py
	PYTHONPATH=. $(ENVS)/dev/bin/python tests/benchmarks/rank_deaths.py --cpu --work $$(mktemp -d)
	RUNBOOK_INSTALL=1 $(ENVS)/dev/bin/python -m pytest tests/test_packaging.py

check: dev  ## format, lint, types, import contracts
	$(ENVS)/dev/bin/ruff format --check -q .
	$(ENVS)/dev/bin/ruff check -q .
	$(ENVS)/dev/bin/mypy
	$(ENVS)/dev/bin/lint-imports

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "runbook needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make demo PYTHON=python3.12" >&2; exit 2; }

operator: python  ## the operator's environment, without torch
	@$(MAKE_VENV) --dest $(ENVS)/operator --lock $(LOCKS)/operator.lock --imports click,textual,paramiko
	@$(ENVS)/operator/bin/python scripts/install_here.py

dev: python  ## the environment of the tests
	@$(MAKE_VENV) --dest $(ENVS)/dev --lock $(LOCKS)/dev.lock $(if $(TORCH_INDEX),--index-torch $(TORCH_INDEX)) --imports torch,transformers,pyarrow,textual,pytest
	@$(ENVS)/dev/bin/python scripts/install_here.py

serve: python  ## the environment of SGLang on a CPU
	@$(MAKE_VENV) --dest $(ENVS)/serve --lock $(LOCKS)/serve-cpu.lock $(if $(TORCH_INDEX),--index-torch $(TORCH_INDEX)) --plugin runbook/serving/cpu_platform --imports torch,transformers,sglang

oracles: dev  ## the peers' packages, for tests that hold ours against theirs
	@$(ENVS)/dev/bin/python scripts/make_oracles.py $(ENVS)/oracles

system:  ## Debian packages that the tests need
	@sh scripts/system_packages.sh

clean:  ## remove environments, the demo's workspace and its model in shared memory
	rm -rf .envs demo /dev/shm/runbook-demo
