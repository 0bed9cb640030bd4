# Everything runs in a virtual environment of its own, made from nothing but Python 3.11 or later:
#   make demo   generate Python with the bundled model, speculatively, and compare with plain decoding
#   make test   run the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Tests that follow each other share programs, so a worker takes neighbours.
IN_PARALLEL := -n $(WORKERS) --dist worksteal
BUILT_FROM := pyproject.toml setup.py $(shell find pallas_kernels/native -name '*.cc' -o -name '*.h')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow test-mesh test-tpu test-gpu test-eval test-ray test-beam test-page test-neon neon-python gpu tpu lint format docs bench notebook clean

help:
	@echo "make demo       run the bundled model: draft, verify, accept; compared with plain decoding"
	@echo "make test       run the tests (fifteen to twenty-five minutes on two cores)"
	@echo "make test-slow  run the longer checks as well"
	@echo "make test-mesh  run the tests on four devices, slow ones too; they are parts of the CPU"
	@echo "make test-tpu   compile the TPU kernels with libtpu; needs no TPU (Linux on x86-64)"
	@echo "make test-gpu   compile the GPU kernels, and run Triton's in its interpreter; needs no GPU (Linux; Python 3.12+)"
	@echo "make test-eval  run lm-evaluation-harness with specjax, on local files"
	@echo "make test-ray   run an evaluation on two workers of Ray, and resume it after kill -9"
	@echo "make test-beam  run an evaluation in a pipeline of Apache Beam on two workers"
	@echo "make test-page  run the server's page in Chromium; needs chromium and chromedriver"
	@echo "make test-neon  run the NEON kernels in qemu; needs qemu-user-static and g++-aarch64-linux-gnu (Debian on x86-64)"
	@echo "make gpu        measure kernels and models on this machine's GPU: two hours and more, in slices that can be resumed"
	@echo "make tpu        the same on this machine's TPU; DAY=FOLDER is where results go (default: device-day)"
	@echo "make lint       ruff and mypy"
	@echo "make docs       build the documentation into site/, strictly: a broken link is an error"
	@echo "make bench      the decoding benchmark of docs/speed.md"
	@echo "make notebook   open the notebooks in Jupyter"

# pip comes last into an environment: one without it was left half-made, and is completed. Its version is Python's own,
# so that a second attempt overwrites the first.
%/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "specjax needs Python 3.11 or later; name one with make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $*

$(VENV)/.run: $(BUILT_FROM) | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(BUILT_FROM) | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run
	$(BIN)/specjax generate --max-tokens 128 --compare

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(IN_PARALLEL)
	$(ON_MESH) -m 'mesh and not slow' tests/mesh

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not tpu_compiler and not gpu_compiler and not harness and not ray and not beam and not mesh and not browser and not neon'
	$(ON_MESH) -m mesh tests/mesh

# In a process of their own: how many devices a CPU is can be said only before JAX starts.
ON_MESH = XLA_FLAGS=--xla_force_host_platform_device_count=4 $(BIN)/python -m pytest $(IN_PARALLEL)

test-mesh: $(VENV)/.dev
	$(ON_MESH) -m mesh tests/mesh

# Environments with one more extra each: their packages are large, few need them, and with libtpu installed JAX looks for
# a TPU whenever it starts.
.venv-%/.dev: $(BUILT_FROM) | .venv-%/bin/pip
	.venv-$*/bin/python -m pip install --quiet --editable '.[dev,$*]'
	@touch $@

.PRECIOUS: .venv-%/.dev %/bin/pip

test-tpu: .venv-tpu-compiler/.dev
	JAX_PLATFORMS=cpu .venv-tpu-compiler/bin/python -m pytest -m tpu_compiler

# jax 0.10, the last for Python 3.11, compiles Triton's kernels only.
test-gpu: .venv-gpu-triton/.dev
	JAX_PLATFORMS=cpu .venv-gpu-triton/bin/python -m pytest $(IN_PARALLEL) -m 'not slow and not tpu_compiler' \
	  -k 'triton or gpu_compiler' tests/kernels

test-eval: .venv-eval/.dev
	.venv-eval/bin/python -m pip install --quiet "lm_eval[api]" transformers # by which the harness asks a server
	.venv-eval/bin/python -m pytest -m harness tests/evaluation

test-ray: .venv-ray/.dev
	.venv-ray/bin/python -m pytest -m ray tests/evaluation

test-beam: .venv-beam/.dev
	.venv-beam/bin/python -m pytest -m beam tests/evaluation

test-page: $(VENV)/.dev
	$(BIN)/python -m pytest -m browser tests/serving/page

# Python for ARM in qemu. The packages are installed there: beside the tests lie the kernels of this machine.
NEON := .venv-neon
NATIVE := quant_native quant_fused cache_attention_native gated_delta_native rms_norm softmax_totals causal_conv1d
ON_NEON = PYTHONSAFEPATH=1 TOKENS_ELSEWHERE=$(abspath $(NEON)/tokens.json) \
  $(NEON)/bin/python -m pytest -p no:cacheprovider -o pythonpath=tests

neon-python:
	@tests/neon/environment.sh $(NEON)

test-neon: neon-python $(VENV)/.dev
	$(BIN)/python -m pip --python $(NEON)/bin/python install --quiet --no-compile . pytest
	$(BIN)/python tests/neon/tokens.py > $(NEON)/tokens.json
	$(ON_NEON) -m neon tests/neon
	$(ON_NEON) -k 'neon or cpu_native' $(NATIVE:%=tests/kernels/test_%.py)

# The day with a device. Torch, FlashInfer and flash-linear-attention are timed too where somebody has installed them.
DAY ?= device-day
EXTRAS_gpu := cuda,gpu-triton
EXTRAS_tpu := tpu
$(VENV)/.gpu $(VENV)/.tpu: $(VENV)/.%: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS_$*)]'
	@touch $@

gpu: $(VENV)/.gpu
	$(BIN)/python benchmarks/device_day.py gpu --out $(DAY)

tpu: $(VENV)/.tpu
	$(BIN)/python benchmarks/device_day.py tpu --out $(DAY)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own, with nothing of specjax: the reference is read from the sources.
.venv-docs/.docs: pyproject.toml | .venv-docs/bin/pip
	.venv-docs/bin/python -c "import tomllib; \
	  print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
	  > .venv-docs/requirements.txt
	.venv-docs/bin/python -m pip install --quiet --requirement .venv-docs/requirements.txt
	@touch $@

docs: .venv-docs/.docs
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath .venv-docs)/bin:$$PATH" .venv-docs/bin/mkdocs build --strict

bench: $(VENV)/.run
	$(BIN)/python benchmarks/decode.py

notebook: $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	$(BIN)/jupyter lab notebooks

clean:
	rm -rf $(VENV) .venv-* site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
