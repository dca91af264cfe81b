# `make demo` and `make test` each do everything on a machine that has Python 3.11 and a C++ compiler.
PYTHON ?= python3.11
VENV ?= .venv
PY := $(VENV)/bin/python
export MAX_JOBS ?= 2
export OMP_NUM_THREADS ?= 2

.PHONY: all build test demo lint coverage benchmark clean
all: build

# The build requirements go first, so that the extension is compiled against the very torch it will run with.
$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q "setuptools>=77" wheel ninja xla-cpu-pjrt==0.0.1 torch==2.13.0
	$(PY) -m pip install -q --no-build-isolation -e ".[test,dev]"
	touch $@

# Installing has built the extension; later only what changed is compiled.
build: $(VENV)/.installed
	@test -z "$$(find setup.py csrc -newer torch_tpu/_C*.so)" || $(PY) setup.py -q build_ext --inplace

test: build
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 $(TESTS)

demo: build
	$(PY) examples/train_gpt.py --device tpu --layers 2 --heads 4 --width 128 --seq 128 --batch 16 --steps 1000 \
		--lr 2e-3 --out out/demo

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(shell find csrc -name '*.cpp' -o -name '*.h')

coverage: build
	$(PY) -m benchmarks.coverage

benchmark: build
	$(PY) -m benchmarks.run

clean:
	rm -rf build $(VENV) torch_tpu/*.so
