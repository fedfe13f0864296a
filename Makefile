# Every target sets up its own environment in .venv, once, and again only when its definition changes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A second opinion for tests. By itself pip would add torchvision, which backpack declares and nobody here needs.
ORACLES := curvlinops-for-pytorch backpack-for-pytorch einconv unfoldNd linear_operator

# A process per core, and a thread per process. Files stay together: they share clusters and fitted guards.
PYTEST := -m pytest -n auto --maxprocesses 4 --dist loadfile
TEST   := OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST)
SLOW   := slow or browser or ray or real or docs
ARGS   :=  # more words for pytest: files, -k NAME, -n 0 for one process

.PHONY: demo test test-slow test-ecosystem coverage lint format docs bench clean

demo: $(READY)  ## the main job on built-in real data: out/digits/report.html
	$(BIN)/flatfold bench digits

test: $(DEV)  ## the quick tests, doctests included: before every commit
	$(TEST) -m "not ($(SLOW) or ecosystem)" $(ARGS)

test-slow: $(VENV)/.ready-slow  ## all others: browser, Ray, real networks, documentation, long simulations
	$(TEST) -m "$(SLOW)" $(ARGS)

# Its environment is no part of the clone: 7 GB (3 GB to download), three minutes, once.
test-ecosystem:  ## the quick tests with the oldest torch, and the real torchvision, timm, transformers, datasets
	environment=$$(.ci/ecosystem) && PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 \
		"$$environment/bin/python" $(PYTEST) -m "not ($(SLOW))" $(ARGS)

coverage: $(DEV)  ## all tests of the first two, with branch coverage
	$(TEST) -m "not ecosystem" --cov --cov-report=term

lint: $(DEV)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)  ## rewrite the code in the style that lint expects
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV)  ## the site, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in site/: $(BIN)/python -m http.server --directory site"

bench: $(VENV)/.ready-bench  ## speed and accuracy as ratios, measured in one run
	$(BIN)/python -m benchmarks

clean:  ## remove everything that was made here
	rm -rf $(VENV) out build dist site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks studies docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready-bench: $(DEV)
	$(PIP) -e '.[bench]'
	$(PIP) --no-deps pyhessian
	touch $@

$(VENV)/.ready-slow: $(DEV)
	$(PIP) -e '.[mlflow]'
	touch $@

$(DEV): $(READY)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(ORACLES)
	touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flatfold needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo]'
	touch $@
