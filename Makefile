# dcache: `make run` shows it at work, `make gate` tests it.

# The linter, at the version that internal/tools pins. It asks for the packages as the race detector builds them, and so do vet, the
# benchmarks and the small run: then SQLite is compiled once for all of them.
LINTER = bin/golangci-lint
LINT   = GOFLAGS="$$(go env GOFLAGS) -race" "$(CURDIR)/$(LINTER)"

# Of the long runs; each prints its seed.
ROUNDS   ?= 100
FUZZTIME ?= 5m
ARGS     ?=

.PHONY: help
help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 12

.PHONY: run
run: toolchain ## the store's life on the Go source tree: submit, fetch, kill, resume, sweep, evict, audit (ARGS='-dir ... -keep')
	@echo "building; SQLite is compiled from C: a minute or more where the build cache is empty"
	@cd internal/replay && go run . $(ARGS)

.PHONY: gate
gate: toolchain announce fmt tidy compile vet lint given test bench-once fuzz-once replay ## all checks, within ten minutes from an empty build cache
	@echo "gate: passed"

.PHONY: gate-all
gate-all: gate peers litestream torture ## the gate, the peers and the long runs

.PHONY: announce
announce:
	@echo "gate: SQLite is compiled from C twice (race detector, fuzzer), and a linter is built: several minutes where the build cache is empty"

# One line for each thing that may be missing, instead of a page of errors.
.PHONY: toolchain
toolchain:
	@command -v go >/dev/null || { echo "dcache needs Go 1.26 or newer: install it from https://go.dev/dl"; exit 1; }
	@command -v "$$(go env CC)" >/dev/null || { echo "dcache needs a C compiler for SQLite: install gcc (Debian, Ubuntu: apt install gcc libc6-dev)"; exit 1; }
	@test "$$(go env CGO_ENABLED)" = 1 || { echo "dcache needs cgo for SQLite: unset CGO_ENABLED, or set CGO_ENABLED=1"; exit 1; }

.PHONY: fmt
fmt:
	@echo "gate: format"
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these:"; echo "$$unformatted"; exit 1; }

.PHONY: tidy
tidy:
	@echo "gate: go mod tidy"
	@go mod tidy -diff
	@cd internal/replay && go mod tidy -diff

# The compilations of SQLite take one core each, and so stand side by side.
.PHONY: compile compile-race compile-fuzz
compile:
	@echo "gate: compile (the long part, where the build cache is empty)"
	@$(MAKE) --no-print-directory -j2 compile-race compile-fuzz $(LINTER)

$(LINTER): internal/tools/go.mod
	@go build -modfile=internal/tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

compile-race:
	@go test -vet=off -race -run='^$$' ./... >/dev/null
compile-fuzz:
	@go test -vet=off -run='^$$' -fuzz=FuzzModel -fuzztime=1x ./internal/dcache >/dev/null

.PHONY: vet
vet:
	@echo "gate: vet"
	@go vet -race ./...

.PHONY: lint
lint: $(LINTER)
	@echo "gate: lint"
	@$(LINT) run ./...
	@cd internal/replay && $(LINT) run ./...

.PHONY: given
given:
	@echo "gate: the given test is as it was given"
	@cmp _files/dcache/batch_test.go internal/dcache/batch_test.go

.PHONY: test
test: ## the tests, with the race detector and in random order
	@echo "gate: test"
	@go test -vet=off -race -shuffle=on ./...

.PHONY: bench-once
bench-once:
	@echo "gate: every benchmark once"
	@go test -vet=off -race -run='^$$' -bench=. -benchtime=1x ./internal/dcache >/dev/null

.PHONY: fuzz-once
fuzz-once:
	@echo "gate: fuzz, ten seconds"
	@go test -vet=off -run='^$$' -fuzz=FuzzModel -fuzztime=10s -fuzzminimizetime=10x ./internal/dcache

.PHONY: replay
replay:
	@echo "gate: the runnable program's tests, and a small run of it"
	@cd internal/replay && go test -race -shuffle=on ./... && go run -race . -dir "$$(go env GOROOT)/src/net"

.PHONY: peers
peers: toolchain $(LINTER) ## the peers' tests
	@cd internal/peerbench && go mod tidy -diff && $(LINT) run ./... && go test ./...

.PHONY: bench
bench: toolchain ## dcache beside its peers; writes internal/peerbench/results
	@cd internal/peerbench && go run . $(ARGS)

.PHONY: fuzz
fuzz: toolchain ## random operations over the store and its model, for FUZZTIME=5m
	go test -run='^$$' -fuzz=FuzzModel -fuzztime=$(FUZZTIME) -fuzzminimizetime=10x ./internal/dcache

.PHONY: torture
torture: toolchain ## kills, power cuts, full disks and a million operations over the model, ROUNDS=100
	go test -run='TestKill|TestPowerCut|TestDiskFull|TestModel$$|TestClose' -timeout=0 -v ./internal/dcache \
		-torture.rounds=$(ROUNDS) -model.ops=340000

.PHONY: litestream
litestream: toolchain $(LINTER) ## Litestream replicates a store at work, and its copy is audited; builds Litestream, two minutes
	@cd internal/litestream && go mod tidy -diff && $(LINT) run ./... && go test -v ./...
