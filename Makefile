# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WRITTEN := chapters docs tests benchmarks conf.py src/literate_rl/__main__.py
.DEFAULT_GOAL := help
# Containers often set it. Then each notebook and each worker of the tests would compile what
# it imports anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help html serve zip sync format check test engines pythons newest lowest chapter notebooks lab edit bench peers learn films readers worlds dist clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment: made once, and again when a dependency changes. uv installs in a tenth of
# pip's time. torch is left to pip, whose settings may name a build without CUDA, and so is
# everything where only pip's settings reach an index.
ALL := --quiet --constraint constraints.txt --editable '.[docs,test,bench,ray,trees]'
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt torch uv
	$(BIN)/uv pip install --python $(BIN)/python $(ALL) || \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(ALL)
	@touch $@

sync: $(READY)  ## Make the notebooks and the modules from the chapters
	@$(BIN)/python docs/_ext/tangle.py

# Sphinx copies pictures at the end, of the pages that it has just written. So after a build
# that was interrupted all pages are written again.
html: sync  ## Execute the chapters and build the website; ADDRESS=https://… where it will be
	@mkdir -p build && touch build/unfinished
	$(BIN)/python -m sphinx -n -W --keep-going -T $(if $(wildcard build/unfinished),-a) $(if $(ADDRESS),-D html_baseurl=$(ADDRESS:/=)/) \
	  -d build/doctrees . build/html
	@rm build/unfinished
	@echo "Open $(CURDIR)/build/html/index.html"

serve: html  ## Build the website and serve it on http://localhost:8000
	$(BIN)/python -m http.server --bind localhost --directory build/html 8000

zip: html  ## Pack the website into build/site.zip; it works from a folder, offline
	@cd build && rm -f site.zip && $(CURDIR)/$(BIN)/python -m zipfile -c site.zip html/
	@test $$(wc -c < build/site.zip) -le 40000000 || \
	  { echo "build/site.zip has more than 40 MB: make clean, then make zip"; exit 1; }
	@du -h build/site.zip

test: html  ## Run all tests, those of the built website included
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

# Debian's packages. What they recommend plays the films.
engines: html  ## Try the website in Firefox and in WebKitGTK, the engine of Safari
	@which firefox-esr WebKitWebDriver Xvfb >/dev/null || \
	  { echo "These are needed: apt-get install firefox-esr webkit2gtk-driver xvfb"; exit 1; }
	$(BIN)/python -m pytest tests/engines.py

pythons:  ## Run `make test` in a clone on each other Python: all chapters, the site, all tests
	@for version in 3.12 3.13; do \
	  python=$$(.ci/python $$version) || continue; \
	  rm -rf build/python$$version && git clone --quiet . build/python$$version || exit 1; \
	  $(MAKE) -C build/python$$version PYTHON=$$python test || exit 1; \
	done

newest: dist  ## Try the wheel alone with the newest of everything, on PYTHON
	.ci/wheel newest $(PYTHON)

lowest: dist  ## Try the wheel alone with the lowest that pyproject.toml allows, on PYTHON
	.ci/wheel lowest $(PYTHON) \
	  $$(sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=\([0-9.]*\).*",/\1==\2/p' pyproject.toml)

format: $(READY)  ## Format the code, then make the notebooks and the modules again
	$(BIN)/ruff check --fix $(WRITTEN)
	$(BIN)/ruff format $(WRITTEN)
	@$(BIN)/python docs/_ext/tangle.py

check: $(READY)  ## Say what a chapter lacks; lint and check types
	@$(BIN)/python docs/_ext/check.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint
	$(BIN)/mypy

chapter: $(READY)  ## Begin a new chapter: make chapter NAME=bandits
	@$(BIN)/python docs/_ext/new_chapter.py $(NAME)

notebooks: sync  ## Execute the notebooks, with a progress bar
	$(BIN)/python docs/_ext/notebooks.py

lab: sync  ## Copy the notebooks to notebooks/ and open them in JupyterLab
	@$(BIN)/python docs/_ext/reader.py
	$(BIN)/jupyter lab notebooks

edit: sync  ## Edit the chapters in JupyterLab; chapter and notebook are saved together
	$(BIN)/jupyter lab chapters/notebooks

bench: $(READY)  ## Measure speed beside the peers; store the data for the results page
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.spaces

# Nothing of the book's environment, but the book itself: peers want versions of their own.
peers: $(READY)  ## Measure beside other libraries, in an environment of their own; ONLY=NAME
	@test -d build/peers || $(BIN)/python -m venv build/peers
	build/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --requirement benchmarks/peers.txt --editable .
	build/peers/bin/python -W ignore -m benchmarks $(or $(ONLY),peers)
	$(if $(ONLY),,build/peers/bin/python -W ignore -m benchmarks.ppo_solve)

learn: $(READY)  ## Train the agents of the results page; a stopped run goes on
	$(BIN)/python -m benchmarks.learning
	$(BIN)/python -m benchmarks.reinforce_learning
	$(BIN)/python -m benchmarks.a2c_learning
	$(BIN)/python -m benchmarks.arc_learning
	$(BIN)/python -m benchmarks.ablation
	$(BIN)/python -m benchmarks.hybrid_learning \
	  moving moving_list_12 moving_list_8 moving_idle_2 moving_idle_4 moving_idle_16 \
	  moving_idle_cause \
	  lander lander_discrete lander_continuous
	$(BIN)/python -m benchmarks.masks_learning
	$(BIN)/python -m benchmarks.recurrent_learning
	$(BIN)/python -m benchmarks.ppg_learning
	$(BIN)/python -m benchmarks.impala_learning
	$(BIN)/python -m benchmarks.dqn_learning
	$(BIN)/python -m benchmarks.rainbow_learning
	$(BIN)/python -m benchmarks.ddpg_learning \
	  ddpg_pendulum ddpg_batches td3_switches ddpg_landscapes td3_copies ddpg_priorities \
	  ddpg_discrete ddpg_corner
	$(BIN)/python -m benchmarks.sac_learning \
	  sac_pendulum sac_batches sac_units sac_targets sac_mountain sac_mountain_parts \
	  sac_cartpole sac_cartpole_sure sac_cartpole_cool sac_cartpole_hoard \
	  sac_cartpole_random
	$(BIN)/python -m benchmarks.apex_learning
	$(BIN)/python -m benchmarks.programs
	$(BIN)/python -m benchmarks.live

films: $(READY)  ## Film the agents before and after training; a stopped run goes on
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[mujoco]'
	$(BIN)/python -m benchmarks.films

# An environment as the first cell of a notebook makes it, with the versions of the book.
readers: html  ## Run the notebooks that the site hands out, on PYTHON=python3.12
	rm -rf build/readers
	$(PYTHON) -m venv build/readers
	build/readers/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt ipykernel matplotlib "$$(echo build/html/notebooks/*.whl)[trees]"
	$(BIN)/python -m benchmarks.handed_out build/readers/bin/python

# The environment of the book, and on top of it what these worlds need.
worlds: $(READY)  ## Train for a moment in environments of other people
	@test -d build/worlds || $(BIN)/python -m venv build/worlds
	@$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	  > $$(echo build/worlds/lib/python3.*/site-packages)/book.pth
	build/worlds/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt --requirement benchmarks/third_party.txt
	build/worlds/bin/python -W ignore -m benchmarks.third_party $(if $(ONLY),--only $(ONLY))

dist: $(READY)  ## Build the package into dist; TAG=v1.2.3 must fit its version
	@$(BIN)/python docs/_ext/release.py $(TAG)
	rm -rf dist
	$(BIN)/python -m build .

clean:  ## Remove what was built; the environment stays
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
