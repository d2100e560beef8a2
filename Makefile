# Two commands bring it up: `make demo` and `make test`. Everything lives in .venv/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv installs three times as fast as pip but does not read pip's find-links; hand them on when they are set, and
# otherwise ask for the CPU build of torch, which is all that a machine without a GPU needs.
UV_LINKS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS))
UV_ENV := $(if $(UV_LINKS),UV_FIND_LINKS="$(UV_LINKS)",UV_TORCH_BACKEND="$(or $(UV_TORCH_BACKEND),cpu)") $(if $(PIP_CERT),SSL_CERT_FILE="$(PIP_CERT)")

.PHONY: install demo test check lint docs docs-tools client axe lock sbom bench clean help

help:
	@echo "make install   .venv/ with everything (CPU is enough)"
	@echo "make demo      which models share a GPU well, and a dozen jobs with and without sharing"
	@echo "make test      the whole test suite"
	@echo "make check     lint, types and the tests that need no training, server or process of their own"
	@echo "make lint      ruff and mypy"
	@echo "make docs      the documentation as a site in build/site"
	@echo "make client    the wheel of the HTTP client in dist/, from the service's current OpenAPI document"
	@echo "make axe       axe-core of npm in build/, for the accessibility tests of the dashboard"
	@echo "make bench     the long measurements (see benchmarks/)"

# First what is locked, by its hashes; then torch in the build that suits, and the project itself.
$(VENV)/.installed: pyproject.toml requirements/dev.txt
	@echo "installing into $(VENV)/ (a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade uv
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(UV_ENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-deps --require-hashes -r requirements/dev.txt
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(UV_ENV) $(BIN)/uv pip install --quiet --compile-bytecode -e '.[dev]'
	@touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/cotenant demo

# Tests start some dozens of processes; each would compile the project anew where bytecode is not written on import.
test: install
	@$(BIN)/python -m compileall -q -j 2 profiling datasets models predictor scheduling serving benchmarks
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The folders whose tests take seconds.
QUICK := tests/test_imports.py tests/datasets tests/models tests/profiling/devices tests/scheduling/core tests/scheduling/placement tests/scheduling/slices/test_plan.py

check: lint
	$(BIN)/python -m pytest -q $(QUICK)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site in build/site: pages, and references made from commands, routes and docstrings. A link that
# leads nowhere is an error; the notice that is turned off tells of the end of MkDocs Material in 2027, not of a fault here.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/uv tool run --quiet --from 'mkdocs>=1.6,<2' --with 'mkdocs-material>=9.6,<10' --with 'mkdocstrings[python]>=0.30' mkdocs

docs: install
	$(BIN)/python docs/make_site.py build/docs
	$(MKDOCS) build --strict --quiet
	@echo "build/site/index.html"

# Whether MkDocs is here or can be fetched.
docs-tools: install
	@$(MKDOCS) --version > /dev/null 2>&1

# The HTTP client: its OpenAPI document from the service, and its wheel.
client: install
	$(BIN)/python clients/openapi.py clients/python/openapi.json
	$(BIN)/uv build --quiet --wheel clients/python --out-dir dist
	@ls dist/cotenant_client-*.whl

# axe-core, which the tests of the dashboard ask about accessibility where it is.
axe:
	npm install --silent --no-save --no-package-lock --prefix build axe-core@4

# The lock files with hashes, after a change of dependencies.
lock: install
	requirements/lock.sh

# What the image holds, as CycloneDX, from the lock file.
sbom: install
	mkdir -p build
	$(BIN)/uv tool run --from 'cyclonedx-bom>=7' cyclonedx-py requirements requirements/runtime.txt --of JSON -o build/sbom.cdx.json

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
