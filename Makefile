# Thin: what happens is in scripts/.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-full chaos bench fmt lint doc openapi sqlx-prepare web setup

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: ## build everything and watch jobs consume (ARGS="--rate 200", KEEP=1)
	@scripts/demo $(ARGS)

test: ## everything that must hold, on a real Kafka and PostgreSQL
	@scripts/test

test-fast: ## unit tests and the layer test only
	@scripts/test --fast

test-full: ## make test, then 10,000 seeds of the simulation (SEEDS=100000)
	@scripts/test --full $(SEEDS)

chaos: ## a thousand deaths of the server under load, judged by the oracle (ARGS="--kills 200 --seed 7")
	@scripts/chaos $(ARGS)

bench: ## the engine beside a bare librdkafka loop, the Postgres sink beside psql's COPY (ARGS="sink --rounds 5")
	@scripts/bench $(ARGS)

fmt: ## format the Rust code
	@cargo fmt --all

lint: ## format check and clippy, warnings are errors
	@cargo fmt --all --check
	@SQLX_OFFLINE=true cargo clippy --locked --workspace --all-targets -- -D warnings

doc: ## the documentation of the code, private items too
	@SQLX_OFFLINE=true RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items

openapi: ## write openapi/handover.json anew
	@mkdir -p openapi
	@SQLX_OFFLINE=true cargo run --quiet --locked --bin handover -- openapi >openapi/handover.json.new
	@mv openapi/handover.json.new openapi/handover.json

sqlx-prepare: ## write .sqlx/ anew after a change of SQL or schema
	@scripts/sqlx-prepare

web: ## build the web page that the binary embeds
	@scripts/web build

setup: ## look for what building, testing and the demo need
	@scripts/setup --for test
