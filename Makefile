# make help lists what there is. Only Go is needed, but for the targets that say so.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
BENCHSTAT   := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
REDOCLY     := -p node@22 -p @redocly/cli@2.77.0 redocly
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
BIN         ?= bin/answerd
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Without golang.org/x/net/trace, whose pages nothing serves, the binary is 0.3 MB smaller.
TAGS        := grpcnotrace
FUZZTIME    ?= 10s
COUNT       ?= 6
HOT         ?= ./internal/llm/openai ./internal/llm/texttool ./internal/event ./internal/sse ./internal/api ./internal/api/native ./internal/mcp ./internal/agent
SOAK        ?= 2m
# The attacks of make abuse, and how many creators of keys it kills.
ATTACKS     := TestContainer|TestFloods|TestF34Full|TestF39|TestF40|TestF42|TestF43|TestF48|TestF50|TestF52
KEY_KILLS   := 200
ifdef SHORT
ATTACKS     := TestFloods
KEY_KILLS   := 40
endif
ifdef LONG
ATTACKS     := $(ATTACKS)|TestF45|TestF46
KEY_KILLS   := 1000
endif
REPORT      ?=
IMAGE       ?= answerd:$(VERSION)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: ## answerd with an IAM, an MCP server and a stand-in for a model; no key needed
	go run ./cmd/server demo

.PHONY: run
run: ## serve, configured by the environment
	go run ./cmd/server

.PHONY: build
build: ## bin/answerd
	CGO_ENABLED=0 go build -tags $(TAGS) -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/server

.PHONY: test
test: ## all tests that need only Go and a minute
	go test ./...

.PHONY: race
race: ## make test and what make durable adds, under the race detector (SHORT=-short leaves out tests with long counts); not importtest, which reads sources in one goroutine
	ANSWERD_TEST_DURABLE=1 $(if $(SHORT),,ANSWERD_TEST_LONG=1) CGO_ENABLED=1 go test -race $(SHORT) $$(go list ./... | grep -v /importtest)

.PHONY: durable
durable: ## runs that outlive processes, at length: 200 cut readers, 20, 50 and 100 times kill -9, 1,000 random runs that run again, and what waits for real time limits
	ANSWERD_TEST_DURABLE=1 ANSWERD_TEST_LONG=1 ANSWERD_TEST_RUNS=200 ANSWERD_TEST_KILLS=50 ANSWERD_TEST_CALLS=1000 ANSWERD_TEST_DISK_KILLS=100 \
		go test ./cmd/server -count=1 -parallel 2 -timeout 5m -v -run 'Replica|Killed|Partition|MembersSurvive|ThreeTimes|DemoKeeps'
	ANSWERD_TEST_DURABLE=1 ANSWERD_TEST_KEY_KILLS=1000 ANSWERD_TEST_KILLS=20 go test ./internal/event/jetstream -count=1 -timeout 5m -v -run 'KeyOfAKilledCreator|Kill9|SmallPayload'
	ANSWERD_TEST_DURABLE=1 ANSWERD_TEST_LONG=1 go test ./internal/event/jetstream ./internal/agent ./internal/mcp ./internal/mcp/oauth -count=1 -timeout 5m -v \
		-run 'FullLog|FullOfThem|AnswersAsItsModel|StayListed|QueueWasFull|LaggingReplica|LaggingServer|CutOff|IsolatedServer|LongOutage|FullDisk|DelegationContinues|Thousand|KeepsDying|CannotBeStored'
	ANSWERD_TEST_REPLAYS=1000 go test ./internal/rerun -count=1 -timeout 5m -v -run Random

.PHONY: lint
lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: openapi-lint
openapi-lint: ## lint the OpenAPI documents (needs Node)
	npm_config_ignore_scripts=true npx --yes $(REDOCLY) lint api/openapi.yaml api/openapi/*.yaml

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s, or a count such as 1000x), two packages at a time
	@grep -rl --include='*_test.go' '^func Fuzz' cmd internal | xargs -n 1 dirname | sort -u | xargs -P 2 -I {} .ci/fuzz {} $(FUZZTIME)

.PHONY: load
load: ## overload, stalled readers and the limits, at full size; prints the figures
	LOAD=1 go test -count=1 -v -timeout 10m -run 'TestThreeTimesTheLoad|TestStreamsCutStalledReaders|TestConnections|TestFilesThat|TestMemoryThatRuns' ./cmd/server ./internal/api
	go test -count=1 -v -run Noisy ./internal/agent/admission

.PHONY: faults
faults: ## the faults of docs/internals/faults.md, drains and leaks against the built binary, and their table (F56: make soak)
	FAULTS=1 go test -count=1 -v -timeout 20m -parallel 3 -skip '^TestSoak$$' ./internal/faults

.PHONY: abuse
abuse: ## attacks on the built binary, and their figures, in ten minutes (LONG=1: an hour, with a soak; SHORT=1: those that make faults leaves out)
	ABUSE=1 go test -count=1 -v -timeout 30m -run '$(ATTACKS)' ./internal/faults $(if $(SHORT),-short)
	ANSWERD_TEST_KEY_KILLS=$(KEY_KILLS) go test -count=1 -v -timeout 10m -run KeyOfAKilledCreator ./internal/event/jetstream
	go test -count=1 -v -run '^TestMetricsStayBelow5000SeriesUnderAttack$$' ./cmd/server
	go test -run '^$$' -bench '^BenchmarkSlot$$' -count 3 ./internal/agent/admission
	$(if $(LONG),SOAK=40m go test -count=1 -v -timeout 0 -run '^TestSoak$$' ./internal/faults)

.PHONY: soak
soak: ## load with faults for SOAK, two minutes unless set, by SOAK_CLIENTS (40), SOAK_RATE runs a second at most, on SOAK_LOG (memory, file or nats: three servers); REPORT is a file for its report
	SOAK=$(SOAK) go test -count=1 -v -timeout 0 -run '^TestSoak$$' ./internal/faults -report "$(REPORT)"

.PHONY: bench
bench: ## CPU and memory beside the floor's, as docs/internals/performance.md has them (BENCH=part of a row's name; QUICK=1 in a minute)
	go run ./bench $(if $(QUICK),-quick) -row '$(BENCH)'

.PHONY: bench-micro
bench-micro: ## every testing.B COUNT times, summed up by benchstat
	go test -run '^$$' -bench . -benchmem -count $(COUNT) ./... | tee bench.txt
	go run $(BENCHSTAT) bench.txt

.PHONY: bench-compare
bench-compare: ## the testing.B's of the hot path at BASE and here, by benchstat
	@test -n "$(BASE)" || { echo 'BASE=revision is missing'; exit 2; }
	@set -e; base=$$(mktemp -d); trap 'git worktree remove --force '"$$base" EXIT; \
	git worktree add --detach --quiet $$base $(BASE); \
	for side in $$base .; do (cd $$side && go test -run '^$$' -bench . -benchmem -count $(COUNT) $(HOT)) > bench-$$(test $$side = . && echo here || echo base).txt; done; \
	go run $(BENCHSTAT) bench-base.txt bench-here.txt

.PHONY: golden
golden: ## renew the golden files and the documents made from the code
	go test ./cmd/server ./internal/demo -update
	go test ./internal/api/chat ./internal/api/responses ./internal/api/aisdk ./internal/api/agui ./internal/api/mcptool ./internal/rerun -update

.PHONY: browser-test
browser-test: ## the console in a real browser (needs Node and chromium; skips without)
	internal/console/browser/run.sh

.PHONY: screenshots
screenshots: ## docs/images from the browser tests (needs Node and chromium)
	SHOTS=$(CURDIR)/docs/images internal/console/browser/run.sh story.test.js
	cd docs/images && mv 4-approval-light.png console.png && mv 2-answer-light.png answer.png && rm -f [0-9]*.png

.PHONY: schemathesis
schemathesis: ## requests made up from api/openapi.yaml against the demo (needs Python; skips without)
	api/schemathesis/run.sh

.PHONY: generators
generators: ## clients generated from api/openapi.yaml: compile each, and ask (Node, Python, Java, dotnet or Mono: skips what is missing)
	api/generators/run.sh

.PHONY: clients
clients: ## the npm clients of every API format against a whole service (needs Node; skips without)
	internal/api/clients/run.sh

.PHONY: conformance
conformance: ## the public MCP conformance suite (needs Node; skips without)
	internal/mcp/conformance/run.sh

.PHONY: upstream
upstream: ## the defects of the MCP SDK that are worked around, whether they are still there (docs/internals/upstream)
	docs/internals/upstream/run.sh

.PHONY: providers
providers: ## scripted endpoints with the documented behaviour of model providers, each asked through the whole service
	go test -count=1 -v -run 'TestProvider|TestFallback' ./cmd/server

.PHONY: real-servers
real-servers: ## public MCP servers and servers in Python, called directly and in runs (needs Node and Python; skips without)
	cmd/server/testdata/realservers/run.sh

.PHONY: real-models
real-models: ## a small model behind llama.cpp, asked the demo's questions (needs Python; skips without)
	cmd/server/testdata/realmodels/run.sh

.PHONY: docker
docker: ## the container image
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

.PHONY: docker-test
docker-test: ## build the image, start the compose file, ask (needs Docker; skips without)
	docker/test.sh

.PHONY: manifests
manifests: ## the Helm chart and the Kubernetes manifests: lint, render, validate (Python for the last)
	deploy/kubernetes/check.sh

.PHONY: onboarding
onboarding: ## how long a newcomer waits for the first answer: clone, binary, chart, image
	release/onboarding.sh

.PHONY: cluster-test
cluster-test: ## the Helm chart in a cluster of its own (needs kind, kubectl and Docker; skips without)
	deploy/kubernetes/cluster-test.sh

.PHONY: sbom
sbom: build ## bin/answerd.cdx.json: what the binary is made of (CycloneDX)
	@go test ./internal/supply -run BOM -sbom "$(CURDIR)/bin/answerd.cdx.json" -version "$(VERSION)"

.PHONY: licences
licences: ## renew docs/licences.md
	go test ./internal/supply -update

.PHONY: release-check
release-check: ## a release for this machine's platform, built twice and looked into (docs/releasing.md)
	release/check.sh

.PHONY: vuln
vuln: ## known vulnerabilities in what is called (asks vuln.go.dev; skips without it)
	.ci/vuln $(GOVULNCHECK)

.PHONY: reproducible
reproducible: ## two builds of HEAD, in two directories and without a cache, are the same bytes
	.ci/reproducible

.PHONY: up
up: ## docker compose up
	docker compose up --build

.PHONY: down
down: ## docker compose down
	docker compose down
