.DEFAULT_GOAL := help
.PHONY: help check extremes run test bench load instructions bless fmt build docs chart cluster gateways image wheel wheels dist clients python npm action examples site picture wire front-end lab

# What docs, chart and image start.
BINARY ?= target/release/vllm-sim
# What lab plays.
COUNT ?= 20
SEED ?= 0

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## everything that CI checks
	.ci/run

run: ## serve a model called demo on port 8000
	cargo run --release -- --model demo

test: ## all tests
	cargo test

bench: ## all benchmarks
	cargo bench

load: ## BINARY under load beside a bare hyper server, as docs/performance.md shows it
	python3 benches/load/compare.py --binary $(BINARY)

instructions: ## instructions of a chat with BINARY, against the budget
	benches/instructions.py $(BINARY) --check release

bless: ## run the tests and rewrite the golden files
	BLESS=1 cargo test

fmt: ## format the code
	cargo fmt

build: ## the program, target/release/vllm-sim
	cargo build --release

extremes: ## every number of the API and of the flags at its edges, and refusals on kept connections, with BINARY
	python3 tests/python/extremes.py $(BINARY)
	python3 tests/python/refusals_keep_alive.py $(BINARY)

docs: ## run the commands of README.md and docs/ with BINARY
	python3 tests/python/doc_commands.py $(BINARY)

cluster: ## install the chart on a control plane without containers, and upgrade it under load
	tests/ship/cluster.sh $(BINARY)

gateways: ## the table of docs/gateway-score.md, of the gateways that are installed
	VLLM_SIM=$(abspath $(BINARY)) examples/gateway/table.sh

chart: ## render and check the chart and the manifests, start what they say
	tests/ship/chart.sh $(BINARY)
	python3 tests/ship/chart_args.py $(BINARY) manifests
	tests/ship/kserve.sh $(BINARY)
	tests/ship/metrics_lint.sh $(BINARY)

wheel: ## the Python package in python/dist, by maturin; with BINARY=path around that program
ifeq ($(origin BINARY),file)
	python3 -m venv target/wheel-venv
	target/wheel-venv/bin/pip install -q 'maturin>=1.9,<2'
	cd python && ../target/wheel-venv/bin/maturin build --locked --out dist
else
	python3 python/pack_wheel.py $(BINARY) python/dist
endif

wheels: ## static wheels, tarballs, npm packages and checksums of both machines in python/dist
	.ci/wheels python/dist

dist: ## a tarball, a wheel and an npm package of BINARY in python/dist, with checksums
	.ci/dist $(BINARY) python/dist

clients: ## client libraries of Python against BINARY
	tests/ship/clients.sh $(BINARY)

python: ## types and tests of the Python package around BINARY
	tests/ship/python_package.sh $(BINARY)

npm: ## tests of the npm package around BINARY, and its use from the tarball
	tests/ship/npm_package.sh $(BINARY)

action: ## the steps of action.yml with BINARY, and the names of what is released
	tests/ship/action.py $(BINARY)
	tests/ship/ways_in.py $(BINARY)

examples: ## the examples with BINARY
	tests/ship/examples.sh $(BINARY)

site: ## the pages as one searchable site in target/site, by MkDocs
	python3 -m venv target/site-venv
	target/site-venv/bin/pip install -q mkdocs-material==9.8.1
	rm -rf target/site-pages && mkdir -p target/site-pages
	git ls-files -z '*.md' LICENSE examples/github-actions docs/site.css 'docs/pictures/*.svg' 'docs/pictures/*.png' tests/fixtures/errors/recorded.jsonl tests/fixtures/capacity/statements.json | xargs -0 cp --parents -t target/site-pages
	NO_MKDOCS_2_WARNING=1 target/site-venv/bin/mkdocs build -q --strict

picture: ## the pictures of README.md, from runs of BINARY; the second needs Chromium
	python3 docs/pictures/terminal.py $(BINARY)
	python3 docs/pictures/dashboard.py $(BINARY)

wire: ## the Responses schema anew, from the openai SDK of crates/wire/generate/requirements.txt
	python3 -m venv target/wire-venv
	target/wire-venv/bin/pip install -q -r crates/wire/generate/requirements.txt
	target/wire-venv/bin/python crates/wire/generate/responses_schema.py

image: ## run the Dockerfile without Docker, and its image read-only
	python3 tests/ship/image_root.py

lab: ## random workloads on vLLM's own scheduler and on the engine, step by step; COUNT workloads a class from SEED on
	lab/scheduler/run.sh $(COUNT) $(SEED)

front-end: ## FRONT (vllm-rs, a file of vLLM's wheel) over the engine core of BINARY
	python3 tests/python/front_end_shows.py $(FRONT) $(BINARY)
