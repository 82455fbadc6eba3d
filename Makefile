.DEFAULT_GOAL := help
.PHONY: help check run test bench bless fmt

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## everything that CI checks
	.ci/run

run: ## serve a model called demo on port 8000
	cargo run --release -- --model demo

test: ## all tests
	cargo test

bench: ## all benchmarks
	cargo bench

bless: ## run the tests and rewrite the golden files
	BLESS=1 cargo test

fmt: ## format the code
	cargo fmt
