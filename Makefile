# Every target sets up what it needs. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
TORCH_VERSION ?= 2.13.0
TRITON_VERSION ?= 3.6.0
TORCH_PIP_ARGS ?=
SWEEP_ARGS ?=
BENCH_ARGS ?=
BENCH_SCHEMES ?= fp8_tensor fp8_block128
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?= $(SPREAD) -m 'not slow'
VLLM_VERSIONS ?= 0.25.1
OTHER_VLLM_VERSIONS ?= 0.26.0 0.28.0 0.30.0 0.33.0

BIN := $(VENV)/bin
export PYTHON VENV TORCH_VERSION TRITON_VERSION TORCH_PIP_ARGS

.DEFAULT_GOAL := help
.PHONY: help sweep test lint test-slow test-versions test-gpu bench-serve bench-vllm bench-kernels bench-decode bench-steps bench-layers bench-recompiles bench-gate setup-run setup-test sources other-sources

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

sweep: setup-run ## sweep qwen-moe-fp8 for the H200; without one, answered from recorded evidence
	@echo "==> bringing the database up to date (autotune db upgrade)" >&2
	@$(BIN)/autotune db upgrade
	@echo "==> autotune sweep --gpu h200 --model qwen-moe-fp8 $(SWEEP_ARGS)" >&2
	@$(BIN)/autotune sweep --gpu h200 --model qwen-moe-fp8 $(SWEEP_ARGS)

test: lint sources ## check style, types and layers, then run the tests that need no GPU
	@echo "==> pytest $(PYTEST_ARGS)" >&2
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup-test ## ruff and mypy only
	@echo "==> ruff check, ruff format --check" >&2
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy --strict" >&2
	@$(BIN)/mypy

test-slow: setup-test sources ## run the tests that `make test` leaves out because they take minutes
	@echo "==> pytest -m slow" >&2
	@$(BIN)/python -m pytest -m slow $(SPREAD)

test-versions: setup-test other-sources ## run the plugin's tests in the other versions of vLLM that it knows
	@echo "==> the plugin in vLLM $(OTHER_VLLM_VERSIONS)" >&2
	@AUTOTUNE_VLLM_VERSIONS="$(OTHER_VLLM_VERSIONS)" $(BIN)/python -m pytest $(SPREAD) -m 'not slow' \
		tests/vllm_plugin/test_against_vllm.py tests/vllm_plugin/test_router.py tests/vllm_plugin/test_gate.py \
		tests/vllm_plugin/test_faults.py tests/vllm_plugin/test_step_metrics.py

ALONE := tests/measure/test_gpu_faults.py
test-gpu: setup-test ## run the tests that need a CUDA GPU
	@echo "==> pytest -m gpu, the sweep's faults first: there pytest itself must not hold the GPU" >&2
	@$(BIN)/python -m pytest -m gpu -n 0 $(ALONE)
	@$(BIN)/python -m pytest -m gpu -n 0 --ignore $(ALONE)

bench-serve: ## with a CUDA GPU and vLLM in PYTHON: serve with and without the plugin, and compare
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/serve_with_plugin.py --out bench-results $(BENCH_ARGS)

bench-vllm: ## with a CUDA GPU and vLLM in PYTHON: stock vLLM against the plugin, in turns and rounds, both schemes
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@set -e; export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; for scheme in $(BENCH_SCHEMES); do \
		echo "==> autotune lab run --scheme $$scheme $(BENCH_ARGS)" >&2; \
		long=; [ $$scheme != fp8_block128 ] || long='--point 1@16384+16'; \
		$(PYTHON) -m autotune lab run --scheme $$scheme --out bench-results/lab-$$scheme --point 1@128 $$long $(BENCH_ARGS); \
		$(PYTHON) -m autotune lab report bench-results/lab-$$scheme; \
	done

bench-kernels: ## with a CUDA GPU and vLLM in PYTHON: every backend by token count, with floors
	@$(PYTHON) tools/bench_python.py $@ torch
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/kernels.py --out bench-results $(BENCH_ARGS)

bench-decode: ## with a CUDA GPU, torch and Triton in PYTHON: fused_decode with one option changed at a time
	@$(PYTHON) tools/bench_python.py $@ torch triton
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/decode_forms.py --out bench-results $(BENCH_ARGS)

bench-steps: ## with a CUDA GPU and vLLM in PYTHON: a decode step of the engine alone, stock against the plugin
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/engine_steps.py --out bench-results $(BENCH_ARGS)

bench-layers: ## with a CUDA GPU and vLLM in PYTHON: a call's cost with other layers' weights in between, and to the host
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/layer_calls.py --out bench-results $(BENCH_ARGS)

bench-recompiles: ## with a CUDA GPU and vLLM in PYTHON: vLLM's kernel with and without specialization
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/recompiles.py --out bench-results $(BENCH_ARGS)

bench-gate: ## with a CUDA GPU and vLLM in PYTHON: a single token from the gate on, against vLLM's gate and choice
	@$(PYTHON) tools/bench_python.py $@ torch vllm
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/gate.py --out bench-results $(BENCH_ARGS)

setup-run:
	@tools/bootstrap.sh run

setup-test:
	@tools/bootstrap.sh test

sources: setup-test
	@echo "==> fetching the sources of vLLM $(VLLM_VERSIONS) for the plugin tests (kept in .cache)" >&2
	@$(BIN)/python tools/fetch_vllm_sources.py $(VLLM_VERSIONS)

other-sources: setup-test
	@echo "==> fetching the sources of vLLM $(OTHER_VLLM_VERSIONS) (kept in .cache)" >&2
	@$(BIN)/python tools/fetch_vllm_sources.py $(OTHER_VLLM_VERSIONS)
