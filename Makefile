# csr-controller-manager. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOL := go tool -modfile=hack/tools.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Tags of the image beside VERSION; the manifests say dev.
IMAGE_TAGS ?= dev
# The path of the control plane, as environment variables. A second call takes milliseconds.
CONTROL_PLANE := place=$$(hack/controlplane/get.sh); set -a; eval "$$place"; set +a;
# The paths of Prometheus and promtool, likewise.
MONITORING := place=$$(hack/monitoring/get.sh); set -a; eval "$$place"; set +a;

# The race detector needs a C compiler; .ci/run installs one.
RACE := $(if $(shell command -v gcc),-race)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 18

.PHONY: build
build: ## build the manager and the kubectl plugin kubectl-csr; the image holds only the manager
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o csr-controller-manager .
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o kubectl-csr ./cmd/kubectl-csr

# The version of Go's cryptographic module (crypto/internal/fips140) that build-fips and test-fips use: the one with a FIPS 140-3
# certificate. `go doc crypto/fips140` explains it.
FIPS := v1.0.0

.PHONY: fips-version
fips-version:
	@echo "$(FIPS)"

.PHONY: build-fips
build-fips: ## build the manager with the FIPS 140-3 module of Go, and check that it uses it
	CGO_ENABLED=0 GOFIPS140=$(FIPS) go build -trimpath -ldflags "-X main.version=$(VERSION)-fips" -o csr-controller-manager-fips .
	go version -m csr-controller-manager-fips | grep -F "GOFIPS140=$(FIPS)"
	go version -m csr-controller-manager-fips | grep -F fips140=on

.PHONY: image
image: ## build the image, as an archive for containerd, kind and docker, and its SBOM; needs no engine and no registry
	cd hack/image && SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || true)} \
	  go run . -root ../.. -out ../../bin/image -version "$(VERSION)" -tags "$(IMAGE_TAGS)" \
	  -revision "$$(git rev-parse HEAD 2>/dev/null || true)"

.PHONY: image-test
image-test: ## build the image twice and check its content
	cd hack/image && go test -timeout 20m ./...

.PHONY: demo
demo: ## follow the tutorials on a real control plane: a user and a node get certificates; cleans up at the end
	$(CONTROL_PLANE) go test -count=1 -v ./test/tutorials

.PHONY: run
run: build ## run a control plane with the manager until Ctrl-C, with a kubeconfig to use
	$(CONTROL_PLANE) go run ./hack/run

# The model of a rotation. With the race detector it tries far fewer steps.
MODEL := go test -run '^(TestRandomLives|TestDeathAtEveryWrite)$$' ./controllers/rotation

# The packages that start control planes. TOGETHER holds those that measure no time, so two of them run at a time.
HEAVY := '/(test|csrenv)(/|$$)'
TOGETHER := ./test/bench/... ./test/kit/... ./test/manifests ./test/monitoring ./test/mutants ./test/parity ./test/rotation ./test/tutorials

.PHONY: test
test: test-unit ## run all tests, on a real control plane and against the real kube-controller-manager; what runs in the process of a test has the race detector
	@[ -n "$(RACE)" ] || echo "no gcc: the tests run without the race detector"
	$(CONTROL_PLANE) go test $(RACE) -count=1 -p 1 ./csrenv/... ./test/loop
	$(CONTROL_PLANE) $(MONITORING) go test -count=1 -p 2 $(TOGETHER)
	$(CONTROL_PLANE) go test -count=1 -p 1 ./test/manager ./test/reliability

.PHONY: test-unit
test-unit: ## run the tests that need no control plane, with the race detector
	go test $(RACE) $$(go list ./... | grep -vE $(HEAVY))
	$(MODEL)

.PHONY: test-fips
test-fips: build-fips ## run the tests that need no control plane, and the integration tests, with the FIPS 140-3 module of Go
	CGO_ENABLED=0 GOFIPS140=$(FIPS) go test -trimpath -v $$(go list ./... | grep -vE $(HEAVY))
	$(CONTROL_PLANE) GOFIPS140=$(FIPS) go test -count=1 -timeout 40m -v ./test/loop ./test/manager ./test/rotation

.PHONY: fleet
fleet: ## rotate a CA under 200 certificate managers of client-go, until none uses the old CA
	$(CONTROL_PLANE) go test -tags nightly -count=1 -timeout 20m -v -run '^TestFleet$$' ./test/rotation

.PHONY: test-monitoring
test-monitoring: ## test alerts, runbooks and dashboard, with promtool and a real Prometheus that scrapes the manager
	$(CONTROL_PLANE) $(MONITORING) go test $(RACE) -count=1 ./test/monitoring

# The pinned versions of Kubernetes other than the newest.
OLDER := 1.36.3 1.35.4 1.34.4
# The versions that test-matrix uses.
VERSIONS ?= 1.37.1 $(OLDER)

.PHONY: test-matrix
test-matrix: ## run the integration tests and parity on every pinned Kubernetes version
	for version in $(VERSIONS); do \
	  echo "== Kubernetes $$version"; \
	  ( place=$$(KUBEBUILDER_ASSETS= K8S_VERSION=$$version hack/controlplane/get.sh); \
	    set -a; eval "$$place"; set +a; K8S_VERSION=$$version; export K8S_VERSION; \
	    go test -count=1 -p 1 -timeout 40m -v ./csrenv/... ./test/loop ./test/manager ./test/rotation ./test/parity ); \
	done

# The tag of the release before, from which an upgrade must roll out. Until there is a release, it is a commit that was published nowhere.
RELEASE_BEFORE ?= 7dc5d58

.PHONY: test-upgrade
test-upgrade: ## replace the previous release by this one and back: with each feature switched on, and under load in each phase of a rotation
	$(CONTROL_PLANE) before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; \
	  git archive "$(RELEASE_BEFORE)" | tar -x -C "$$before"; (cd "$$before" && CGO_ENABLED=0 go build -o csr-controller-manager .); \
	  RELEASE_BEFORE="$$before" go test -tags upgrade -count=1 -timeout 20m -v -run '^TestUpgradeFromTheReleaseBefore$$' ./test/manifests && \
	  RELEASE_BEFORE="$$before" go test -tags soak -count=1 -timeout 40m -v -run '^TestUpgradeUnderLoad$$' ./test/reliability

.PHONY: reliability
reliability: ## inject every fault into this manager and kube-controller-manager, for an hour; needs root for a memory limit; writes bin/reliability.md
	mkdir -p bin; $(CONTROL_PLANE) RELIABILITY=full RELIABILITY_TABLE=$(CURDIR)/bin/reliability.md \
	  go test -count=1 -timeout 120m -v -run '^TestFaults$$' ./test/reliability

# How long make soak lasts: ten minutes at least.
SOAK ?= 1h

.PHONY: soak
soak: ## run the manager under a load, faults and rotations for an hour; memory, goroutines and latency must not grow
	$(CONTROL_PLANE) SOAK=$(SOAK) go test -tags soak -count=1 -timeout 150m -v -run '^TestSoak$$' ./test/reliability

.PHONY: parity
parity: ## send the same requests through kube-controller-manager and this manager, and compare field by field
	$(CONTROL_PLANE) go test $(RACE) -count=1 -v ./test/parity

# How long parity-fuzz runs. PARITY_SEED=7 repeats the round that printed "seed 7".
PARITY_FUZZ_FOR ?= 10m

.PHONY: parity-fuzz
parity-fuzz: ## send random requests through both for PARITY_FUZZ_FOR (default 10m), and compare; PARITY_SEED repeats a round
	$(CONTROL_PLANE) PARITY_FUZZ_FOR=$(PARITY_FUZZ_FOR) go test -tags parityfuzz -count=1 -timeout 24h -v \
	  -run '^(TestRandomParity|TestTraitsAreListed)$$' ./test/parity

# Real nodes need all programs of the control plane.
NODES := place=$$(hack/controlplane/get.sh etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet); set -a; eval "$$place"; set +a;

# TestKubeadm needs kubeadm, too.
NODES_AND_KUBEADM := $(subst kube-scheduler,kube-scheduler kubeadm,$(NODES))

.PHONY: e2e-root
e2e-root:
	@[ "$$(id -u)" = 0 ] || { echo "make e2e needs root: it makes namespaces, mounts and cgroups" >&2; exit 1; }

.PHONY: e2e
e2e: e2e-root image ## as root: test that real kubelets join, renew and resume through the Deployment (docs/how-to/run-end-to-end-tests.md)
	$(NODES) go test -tags e2e $(RACE) -count=1 -parallel 8 -timeout 20m -v -run '^Test(Deployment|CARotation|APIServersGetTheBundleLate|KilledRunLeavesNothing)$$' ./test/e2e

.PHONY: e2e-nightly
e2e-nightly: e2e-root image ## run make e2e, e2e-kubeadm, kubelets of every pinned version, static pods, and a test of six minutes
	OLD_KUBELETS=$$(for version in $(OLDER); do KUBEBUILDER_ASSETS= K8S_VERSION=$$version hack/controlplane/get.sh kubelet | \
	  sed -n 's|^CONTROLPLANE=\(.*\)|\1/kubelet|p' || exit 1; done); export OLD_KUBELETS; \
	  $(NODES_AND_KUBEADM) go test -tags e2e $(RACE) -count=1 -parallel 8 -timeout 40m -v ./test/e2e

.PHONY: e2e-kubeadm
e2e-kubeadm: e2e-root image ## as root: test kubeadm init and kubeadm join with the manager in the place of kube-controller-manager
	$(NODES_AND_KUBEADM) go test -tags e2e $(RACE) -count=1 -timeout 20m -v -run '^TestKubeadm$$' ./test/e2e

.PHONY: e2e-kind
e2e-kind: image ## run the steps that work on a kind cluster, which it creates and deletes; needs kind and docker
	$(NODES) E2E_KIND=csr-e2e go test -tags e2e,kind -count=1 -timeout 30m -v -run '^TestKind$$' ./test/e2e

.PHONY: fuzz
fuzz: ## run each fuzz target in the tree for FUZZTIME (default 20m, so for hours); FUZZ=FuzzRules selects one
	git grep -oE '^func $(or $(FUZZ),Fuzz[A-Za-z]+)\(' -- '*_test.go' | sed 's|/[^/]*:func | |; s|($$||' | { failed=; \
	  while read -r package target; do \
	    echo "== $$package $$target"; \
	    go test -v -run '^$$' -fuzz "^$$target$$" -fuzzminimizetime 500ms -fuzztime $(or $(FUZZTIME),20m) "./$$package" || failed="$$failed $$package/$$target"; \
	  done; \
	  [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }; }

.PHONY: fuzz-corpus
fuzz-corpus: ## add to testdata/fuzz what "make fuzz" has found and the corpus does not cover yet; FUZZ=FuzzRules selects one target
	hack/fuzz-corpus.sh '$(or $(FUZZ),Fuzz[A-Za-z]+)'

# MUTATION=pkg/csr,pkg/ca selects packages.
.PHONY: mutation
mutation: ## change one operator at a time in the packages that decide; unit tests must notice (floors in hack/mutation/targets.yaml)
	go run ./hack/mutation -only '$(MUTATION)'

# SCENARIO selects scenarios, such as burst,trickle; BENCH_ARGS holds more flags of test/bench.
BENCH = $(CONTROL_PLANE) go run ./test/bench -revision "$(VERSION)" -scenario "$(SCENARIO)"

.PHONY: bench
bench: build ## measure the manager beside kube-controller-manager in every scenario, for hours; SCENARIO=burst selects one
	$(BENCH) -form full $(BENCH_ARGS)

.PHONY: bench-quick
bench-quick: build ## run the quick form of every scenario, about ten minutes; SCENARIO=burst selects one
	$(BENCH) -form quick $(BENCH_ARGS)

# The revision that bench-compare compares with, such as main~10.
BASE ?= main

.PHONY: bench-compare
bench-compare: ## compare the Go benchmarks and the quick scenarios with those of another revision; BASE=main~10 selects it
	$(CONTROL_PLANE) hack/bench-compare.sh "$(BASE)" "$(SCENARIO)"

.PHONY: nightly
nightly: ## run what takes too long for every change (hack/nightly/parts.yaml); PARTS=soak,fuzz selects parts, NIGHTLY_BUDGET=3h limits the time
	go build -o bin/nightly/runner ./hack/nightly
	@exec bin/nightly/runner -parts '$(PARTS)' -budget '$(NIGHTLY_BUDGET)'

.PHONY: nightly-list
nightly-list:
	@go run ./hack/nightly -list

.PHONY: release-dry-run
release-dry-run: ## run every step of a release here, with a registry on localhost and new keys, after two builds with one result
	hack/release/dry-run.sh

# The database of vulnerabilities, or file:// and a folder with a copy of it.
VULNDB ?= https://vuln.go.dev

.PHONY: vuln
vuln: ## search the programs for known vulnerabilities that they reach; needs the database at VULNDB (default https://vuln.go.dev)
	hack/vuln.sh "$(VULNDB)"

.PHONY: vuln-tools
vuln-tools: ## search the tools with which a release is published (cosign, crane, helm) for known vulnerabilities; nightly
	hack/vuln.sh "$(VULNDB)" --tools

# Licences that permit to distribute the programs in binary form.
LICENSES := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT

.PHONY: licenses
licenses: ## check the licences of the linked modules, and list them in docs/reference/licenses.md
	hack/licenses.sh "$(LICENSES)"

SHELLCHECK := $(shell command -v shellcheck)

.PHONY: lint
lint: ## run golangci-lint, also in the modules hack/image and hack/docs, actionlint, and shellcheck if it is installed
	go tool -modfile=hack/actionlint.mod actionlint -shellcheck="$(SHELLCHECK)" -pyflakes=
	$(if $(SHELLCHECK),shellcheck -x -P . $$(git ls-files '*.sh' .ci),@echo "no shellcheck: the scripts are not checked")
	$(TOOL) golangci-lint run ./...
	for module in hack/image hack/docs; do (cd $$module && go tool -modfile=../tools.mod golangci-lint run ./...); done

.PHONY: generate
generate: ## generate roles in config/rbac, the API in config/crd, and their copies in the chart, from the markers in the code, and docs/reference
	$(TOOL) controller-gen object paths=./api/...
	$(TOOL) controller-gen crd paths=./api/... output:crd:dir=config/crd
	cp config/crd/csr-controller-manager.io_signingauthorities.yaml config/rotation/spec_policy.yaml config/rotation/cluster_role.yaml \
	  config/rotation/people.yaml \
	  charts/csr-controller-manager/files/rotation/
	cp config/request-limits/policy.yaml charts/csr-controller-manager/files/admission/request_limits.yaml
	for controller in approver signer cleaner; do \
	  $(TOOL) controller-gen rbac:roleName=csr-$$controller,fileName=$$controller.yaml paths=./controllers/$$controller output:rbac:dir=config/rbac; \
	  cp config/rbac/$$controller.yaml charts/csr-controller-manager/files/; \
	done
	$(TOOL) controller-gen rbac:roleName=csr-kubelet-serving,fileName=role.yaml paths=./pkg/inventory/node output:rbac:dir=config/kubelet-serving
	for component in kubelet-serving node-identity inventory-cluster-api inventory-openshift; do \
	  cp config/$$component/role.yaml charts/csr-controller-manager/files/components/$$component.yaml; \
	done
	$(MAKE) --no-print-directory docs

.PHONY: api
api: ## write hack/api/*.txt, the exported API of the public packages, so that a reviewer sees what changes for users of the module
	go run ./hack/api

.PHONY: docs
docs: ## generate parts of docs/reference from the code
	out=$$(go test -count=1 -run '^(TestPages|TestReferencePage)$$' ./hack/reference ./pkg/config -update) || { echo "$$out" >&2; exit 1; }
	out=$$(go test -count=1 -run '^TestReasonsPage$$' ./commands/explain -update-explained) || { echo "$$out" >&2; exit 1; }

.PHONY: docs-check
docs-check: ## check every link and anchor of the documentation, and that every Mermaid diagram renders
	cd hack/docs && go test -count=1 ./...

.PHONY: verify
verify: ## check that generated files, modules, formatting, the list of the exported API and the documentation are up to date
	hack/verify.sh
