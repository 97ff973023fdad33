# The commands of the README. Each installs what is missing first (scripts/setup says what), then is one `cargo x`.

# Where rustup puts cargo, for the shell that has just seen it installed.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help setup test demo check bench

help:
	@echo 'make test    everything needed to run all tests, then runs them'
	@echo 'make demo    two throw-away clusters, a live write load, one kill -9, both ends proved equal'
	@echo 'make check   fmt, clippy, docs, arrows, tidy, deny'
	@echo 'make bench   NAME=catchup ARGS=--quick: measured against stock PostgreSQL'
	@echo 'make setup   only installs what is missing'

setup:
	@scripts/setup

test: setup
	@cargo x test $(ARGS)

demo: setup
	@cargo x demo $(ARGS)

check: setup
	@cargo x check

bench: setup
	@cargo x bench $(NAME) $(ARGS)
