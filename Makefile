# Everything runs in a virtual environment of its own, made from nothing but Python 3.11 or later:
#   make demo   generate Python with the bundled model, speculatively, and compare with plain decoding
#   make test   run the tests
PYTHON ?= python3
VENV ?= .venv
TPU_VENV ?= .venv-tpu
GPU_VENV ?= .venv-gpu
EVAL_VENV ?= .venv-eval
RAY_VENV ?= .venv-ray
BROWSER_VENV ?= .venv-browser
DOCS_VENV ?= .venv-docs
BIN := $(VENV)/bin
WORKERS ?= 2
BUILT_FROM := pyproject.toml setup.py $(shell find pallas_kernels/native -name '*.cc' -o -name '*.h')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow test-mesh test-tpu test-gpu test-eval test-ray test-page lint format docs bench notebook clean

help:
	@echo "make demo       run the bundled model: draft, verify, accept; compared with plain decoding"
	@echo "make test       run the tests (about an hour on two cores)"
	@echo "make test-slow  run the longer checks as well"
	@echo "make test-mesh  run the tests on four devices, slow ones too; they are parts of the CPU"
	@echo "make test-tpu   compile the TPU kernels with libtpu; needs no TPU (Linux on x86-64)"
	@echo "make test-gpu   compile the GPU kernels, and run Triton's in its interpreter; needs no GPU (Linux; Python 3.12+)"
	@echo "make test-eval  run lm-evaluation-harness with specjax, on local files"
	@echo "make test-ray   run an evaluation on two workers of Ray, and resume it after kill -9"
	@echo "make test-page  run the server's page in Chromium; needs chromium and chromedriver"
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
	$(BIN)/python -m pytest -n $(WORKERS)
	$(ON_MESH) -m 'mesh and not slow' tests/mesh

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not tpu_compiler and not gpu_compiler and not harness and not ray and not mesh and not browser'
	$(ON_MESH) -m mesh tests/mesh

# In a process of their own: how many devices a CPU is can be said only before JAX starts.
ON_MESH = XLA_FLAGS=--xla_force_host_platform_device_count=4 $(BIN)/python -m pytest -n $(WORKERS)

test-mesh: $(VENV)/.dev
	$(ON_MESH) -m mesh tests/mesh

# In an environment of its own: with libtpu installed, JAX looks for a TPU whenever it starts.
$(TPU_VENV)/.dev: $(BUILT_FROM) | $(TPU_VENV)/bin/pip
	$(TPU_VENV)/bin/python -m pip install --quiet --editable '.[dev,tpu-compiler]'
	@touch $@

test-tpu: $(TPU_VENV)/.dev
	JAX_PLATFORMS=cpu $(TPU_VENV)/bin/python -m pytest -m tpu_compiler

# In an environment of its own: Triton and the plugin for CUDA take a gigabyte and a half, and few need them. jax 0.10,
# the last for Python 3.11, compiles Triton's kernels only.
$(GPU_VENV)/.dev: $(BUILT_FROM) | $(GPU_VENV)/bin/pip
	$(GPU_VENV)/bin/python -m pip install --quiet --editable '.[dev,gpu-triton]'
	@touch $@

test-gpu: $(GPU_VENV)/.dev
	JAX_PLATFORMS=cpu $(GPU_VENV)/bin/python -m pytest -n $(WORKERS) -m 'not slow and not tpu_compiler' \
	  -k 'triton or gpu_compiler' tests/kernels

# In an environment of its own: the harness brings data sets, metrics and what these need. It reads tokenizers by
# transformers where it asks a server.
$(EVAL_VENV)/.dev: $(BUILT_FROM) | $(EVAL_VENV)/bin/pip
	$(EVAL_VENV)/bin/python -m pip install --quiet --editable '.[dev,eval]' transformers
	@touch $@

test-eval: $(EVAL_VENV)/.dev
	$(EVAL_VENV)/bin/python -m pytest -m harness tests/evaluation

# In an environment of its own: Ray takes half a gigabyte.
$(RAY_VENV)/.dev: $(BUILT_FROM) | $(RAY_VENV)/bin/pip
	$(RAY_VENV)/bin/python -m pip install --quiet --editable '.[dev,ray]'
	@touch $@

test-ray: $(RAY_VENV)/.dev
	$(RAY_VENV)/bin/python -m pytest -m ray tests/evaluation

# In an environment of its own: few need a driver of browsers.
$(BROWSER_VENV)/.dev: $(BUILT_FROM) | $(BROWSER_VENV)/bin/pip
	$(BROWSER_VENV)/bin/python -m pip install --quiet --editable '.[dev,browser]'
	@touch $@

test-page: $(BROWSER_VENV)/.dev
	$(BROWSER_VENV)/bin/python -m pytest -m browser tests/serving/page

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own, with nothing of specjax: the reference is read from the sources.
$(DOCS_VENV)/.docs: pyproject.toml | $(DOCS_VENV)/bin/pip
	$(DOCS_VENV)/bin/python -c "import tomllib; \
	  print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
	  > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement $(DOCS_VENV)/requirements.txt
	@touch $@

docs: $(DOCS_VENV)/.docs
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(DOCS_VENV))/bin:$$PATH" $(DOCS_VENV)/bin/mkdocs build --strict

bench: $(VENV)/.run
	$(BIN)/python benchmarks/decode.py

notebook: $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	$(BIN)/jupyter lab notebooks

clean:
	rm -rf $(VENV) $(TPU_VENV) $(GPU_VENV) $(EVAL_VENV) $(RAY_VENV) $(BROWSER_VENV) $(DOCS_VENV) site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
