# Two commands do everything on a fresh machine: `make perf` and `make test`.
# Each makes .venv and installs into it when a pyproject.toml or constraints.txt changed since the last time.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed
# The emulated GPU has an environment of its own: torch built for CUDA, and nothing of NVIDIA's.
EMULATED_VENV := .venv-emulated
EMULATED_RUN := $(EMULATED_VENV)/bin/python -m
EMULATED := $(EMULATED_VENV)/.installed
# Another with torch built for CUDA 12, which takes all else from the first.
CUDA12_VENV := .venv-emulated-cuda12
CUDA12_RUN := $(CUDA12_VENV)/bin/python -m
CUDA12 := $(CUDA12_VENV)/.installed
ARGS ?=
JOBS ?= 2

.PHONY: help perf model emulated emulated-cuda12 headers limits claims sabotage loaded test lint bench document-002 bench-verdicts install clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

perf: $(INSTALLED)  ## measure the optimization suite; without a GPU its gpu tests are modelled (ARGS="…" for pytest)
	$(RUN) pytest --perf tests/perf $(ARGS)

model: $(INSTALLED)  ## count and predict the gpu tests on a modelled A10, against its committed baselines
	$(RUN) pytest --perf tests/perf -m gpu --perf-device=model:a10 $(ARGS)

emulated: $(EMULATED) headers  ## torch's CUDA build on an emulated A10: its tests, the gpu suite against its baselines (ARGS="…")
	$(EMULATED_RUN) pytest tests/emulated tests/unit/devices/emulated $(ARGS)
	$(EMULATED_RUN) pytest --perf tests/perf -m gpu --perf-device=emulated:a10

emulated-cuda12: $(CUDA12)  ## the same with a build for CUDA 12: what torch does there, and the table of counts
	$(CUDA12_RUN) pytest -n $(JOBS) tests/emulated/test_torch.py tests/emulated/test_counts.py $(ARGS)

headers: $(EMULATED)  ## fetch NVIDIA's headers, which the emulated card's prototypes are held against (a minute)
	$(EMULATED_RUN) scripts.nvidia_headers .nvidia-headers

limits: $(EMULATED)  ## predict what every gpu contract must reach on four kinds of card, into tests/perf/limits.toml (40 minutes)
	@mkdir -p .benchmarks/limits
	for card in t4 a10 a100-40 h100; do $(EMULATED_RUN) pytest --perf tests/perf -m "gpu and contract" --perf-device=emulated:$$card \
		--perf-without-figures --perf-json=.benchmarks/limits/$$card.json --baseline-dir=.benchmarks/limits $(ARGS) || exit 1; done
	$(EMULATED_RUN) scripts.derive_limits .benchmarks/limits/*.json

claims: $(INSTALLED)  ## run the five documents before and after, and write docs/claims.md
	$(RUN) pytest --perf tests/perf -m scenario --perf-claims=docs/claims.md $(ARGS)

sabotage: $(INSTALLED)  ## switch every optimization off inside its contract, wholly and by half: all must fail (minutes)
	PERFSUITE_SABOTAGE=1 $(RUN) pytest tests/suite/test_sabotage.py $(ARGS)

loaded: $(INSTALLED)  ## three rounds of contracts, as they are and sabotaged, beside a burning core (25 minutes)
	$(RUN) benchmarks.loaded $(ARGS)

test: $(INSTALLED)  ## run all tests, in two processes (JOBS=0: in one, JOBS=8: in eight)
	$(RUN) pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(INSTALLED)  ## ruff, and mypy --strict on perfsuite
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: $(INSTALLED)  ## how fast the subject is (speed.json), and what the plugin costs: at start-up, watching a card
	$(RUN) benchmarks.speed
	$(RUN) benchmarks.startup
	$(RUN) benchmarks.sampler

document-002: $(INSTALLED)  ## one rank against several on the second document's training (ARGS="--ranks 4")
	$(RUN) benchmarks.document_002 $(ARGS)

bench-verdicts: $(INSTALLED)  ## false alarms and slowdowns found, ours beside pytest-benchmark's and asv's (12 minutes)
	@mkdir -p .benchmarks && rm -f .benchmarks/verdicts.jsonl
	$(RUN) benchmarks.verdicts both .benchmarks/verdicts.jsonl $(ARGS)

install: $(INSTALLED)  ## make .venv and install everything

$(INSTALLED): pyproject.toml src/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perfsuite needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./src
	@touch $@

# Without dependencies: torch's wheel asks for 4 GB of NVIDIA's libraries, which the emulator stands in for.
$(EMULATED): pyproject.toml src/pyproject.toml constraints-emulated.txt
	@test -x $(EMULATED_VENV)/bin/python || $(PYTHON) -m venv $(EMULATED_VENV)
	$(EMULATED_RUN) pip install --quiet --no-deps --requirement constraints-emulated.txt
	$(EMULATED_RUN) pip install --quiet --no-deps --editable . --editable ./src
	@touch $@

$(CUDA12): $(EMULATED) constraints-emulated-cuda12.txt
	@test -x $(CUDA12_VENV)/bin/python || $(PYTHON) -m venv $(CUDA12_VENV)
	$(CUDA12_RUN) pip install --quiet --no-deps --requirement constraints-emulated-cuda12.txt
	@$(EMULATED_RUN) sysconfig | sed -n 's/.*purelib = "\(.*\)"/import site; site.addsitedir("\1")/p' \
		> $$($(CUDA12_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/emulated.pth
	@touch $@

clean:  ## remove .venv and caches
	rm -rf $(VENV) $(EMULATED_VENV) $(CUDA12_VENV) .nvidia-headers .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks build dist
