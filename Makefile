# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow test-parties test-browser lint lock check-image data bench claims docs clean-env
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[flower,paillier,ann,pretrained,dp,docs,dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/grapevine demo

# Two at a time; then the tests that start real parties, which need much memory.
REAL := tests/parties/test_conformance.py tests/parties/test_parties.py
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(addprefix --ignore=,$(REAL))
	$(BIN)/python -m pytest $(REAL)

# What takes longer than a few seconds each: full-size cryptography, memory, long runs.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow --timeout 1800

# Real processes on loopback: every method on Flower, and the fault matrix.
test-parties: $(STAMP)
	$(BIN)/python -m pytest -m parties --timeout 1800

# Pages in headless Chromium.
test-browser: $(STAMP)
	$(BIN)/python -m pytest -m browser

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# requirements.lock: versions as in constraints.txt, with the hashes of all files, for Linux on x86-64 and Python 3.11. torch is the
# build without CUDA: name the place that has it in UV_FIND_LINKS or UV_EXTRA_INDEX_URL.
lock: $(STAMP)
	$(BIN)/uv pip compile pyproject.toml --extra flower --extra paillier --extra dp --constraint constraints.txt --upgrade --quiet \
		--generate-hashes --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		--custom-compile-command "make lock" --output-file requirements.lock

# The Dockerfile's own steps in an empty folder, without Docker.
check-image:
	$(PYTHON) deploy/check_image.py

# What bench and claims read: some downloads, then features of CIFAR-10. What is there is left as it is.
data: $(STAMP)
	$(BIN)/python benchmarks/prepare.py

# One that fails, for want of its data perhaps, does not stop the others. The last two make the pages of the results.
BENCHMARKS := simulator streaming label_spreading large_graph label_scale against secure_hamming xclp_round femnist_graph growth augment cost_account \
	xclp_train_round clean_cleanlab supervised docs_numbers label xclp_parts anchor_parts attacks privacy speed claims/page
bench: $(STAMP)
	@failed=; for each in $(BENCHMARKS); do \
		echo "=== $$each"; $(BIN)/python benchmarks/$$each.py || failed="$$failed $$each"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# The papers' claims, and all methods side by side: many hours; what has run is not repeated.
claims: $(STAMP)
	$(BIN)/python benchmarks/claims/run.py
	$(BIN)/python benchmarks/state_of_the_art.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean-env:
	rm -rf .venv
