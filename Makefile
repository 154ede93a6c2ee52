# The same commands for people and for CI. Everything happens in .venv; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-fast test-long test-browser check docs leaderboard benchmark clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing cfsl and what it needs into $(VENV) (the first time takes a minute or two)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -n auto -m "not long and not browser"

test-fast: setup
	$(BIN)/python -m pytest -n auto -m "not slow and not long and not browser"

test-long: setup
	$(BIN)/python -m pytest -m long

test-browser: setup
	$(BIN)/python -c "import playwright" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[browser]"
	$(BIN)/python -m pytest -m browser tests/browser

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto -m "not long and not browser"

docs: setup
	$(BIN)/python -c "import furo, myst_parser, sphinx" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/_ext/api_page.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "wrote docs/_build/html/index.html"

leaderboard: setup
	$(BIN)/cfsl table all results --format markdown --out docs/leaderboard.md
	$(BIN)/python docs/_ext/readme_table.py
	$(BIN)/python docs/_ext/findings_tables.py

benchmark: setup
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/meta.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/freed_memory.py

clean:
	rm -rf $(VENV) demo docs/_build docs/_generated
