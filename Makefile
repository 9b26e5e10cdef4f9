# csr-controller-manager. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The same toolchain as in hack/go.env, which the scripts source.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)

TOOL := go tool -modfile=hack/tools.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Tags of the image beside VERSION; the manifests say dev.
IMAGE_TAGS ?= dev
# The path of the control plane, as environment variables. A second call takes milliseconds.
CONTROL_PLANE := place=$$(hack/controlplane/get.sh); set -a; eval "$$place"; set +a;
# The same, but always built, with the Go that hack/controlplane/go.mod names: a prebuilt API server may have an older Go, without ML-DSA.
BUILT_CONTROL_PLANE := $(subst get.sh,get.sh --built,$(CONTROL_PLANE))
# The paths of Prometheus and promtool, likewise.
MONITORING := place=$$(hack/monitoring/get.sh); set -a; eval "$$place"; set +a;

# The race detector needs a C compiler; .ci/run installs one.
RACE := $(if $(shell command -v gcc),-race)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

.PHONY: build
build: ## build the manager and the kubectl plugin kubectl-csr; the image holds only the manager
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o csr-controller-manager .
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o kubectl-csr ./cmd/kubectl-csr

.PHONY: demo
demo: ## follow the tutorials on a real control plane: a user, a node and a webhook get certificates; cleans up at the end
	$(CONTROL_PLANE) go test -count=1 -v ./test/tutorials

.PHONY: run
run: build ## run a control plane with the manager until Ctrl-C, with a kubeconfig to use
	$(CONTROL_PLANE) go run ./hack/run

# The packages that start control planes. Most of their time they wait, so three run at a time, the longest first; only
# test/manager measures time, and runs alone.
HEAVY := '/(test|csrenv)(/|$$)'
IN_PROCESS := ./test/rotation ./test/postquantum ./test/loop ./test/csrenv ./csrenv/...
TOGETHER := ./test/hosted ./test/tutorials ./test/manifests ./test/reliability ./test/revocation ./test/parity ./test/monitoring ./test/bench/... ./test/kit/... ./test/mutants
# With rarer garbage collections, control planes and managers take an eighth less processor time, and more memory.
REAL := GOGC=400 go test -count=1

.PHONY: test
test: test-unit ## run all tests, on a real control plane and against the real kube-controller-manager; what runs in the process of a test has the race detector
	@[ -n "$(RACE)" ] || echo "no gcc: the tests run without the race detector"
	$(BUILT_CONTROL_PLANE) $(REAL) $(RACE) -p 3 $(IN_PROCESS)
	$(CONTROL_PLANE) $(MONITORING) $(REAL) -p 3 $(TOGETHER)
	$(CONTROL_PLANE) $(REAL) ./test/manager

# With the race detector each program waits for a second at its end, so more run at a time than there are processors. The
# model of a rotation tries far fewer steps with it, so it also runs without.
.PHONY: test-unit
test-unit: ## run the tests that need no control plane, with the race detector
	go test $(RACE) -count=1 -p 4 $$(go list ./... | grep -vE $(HEAVY))
	go test -count=1 -run '^(TestRandomLives|TestDeathAtEveryWrite)$$' ./controllers/rotation

.PHONY: parity
parity: ## send the same requests through kube-controller-manager and this manager, and compare field by field
	$(CONTROL_PLANE) go test -count=1 -v ./test/parity

.PHONY: reliability
reliability: ## inject every fault into this manager and kube-controller-manager, and flood this manager, in 40 to 60 minutes; needs root to fill a disk; writes bin/reliability.md
	mkdir -p bin; $(CONTROL_PLANE) RELIABILITY=full RELIABILITY_TABLE=$(CURDIR)/bin/reliability.md \
	  go test -count=1 -timeout 120m -v -run '^(TestFaults|TestFlood)$$' ./test/reliability

.PHONY: image
image: ## build the image, as an archive for containerd, kind and docker, and its SBOM; needs no engine and no registry
	cd hack/image && SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || true)} \
	  go run . -root ../.. -out ../../bin/image -version "$(VERSION)" -tags "$(IMAGE_TAGS)" \
	  -revision "$$(git rev-parse HEAD 2>/dev/null || true)"

.PHONY: image-test
image-test: ## build the image twice and check its content
	cd hack/image && go test -count=1 -timeout 20m ./...

# Each part has namespaces of its own, and waits for kubelets most of the time, so all run at a time. They start together: each puts
# back the settings of the kernel that it found.
.PHONY: e2e e2e-program e2e-rotation e2e-deployment e2e-nodes
e2e: ## as root: test that real kubelets join, renew and resume through the Deployment (test/README.md)
	$(MAKE) --no-print-directory -j 3 --output-sync=target e2e-rotation e2e-deployment e2e-nodes

e2e-program:
	@[ "$$(id -u)" = 0 ] || { echo "make e2e needs root: it makes namespaces, mounts and cgroups" >&2; exit 1; }
	$(MAKE) --no-print-directory image
	mkdir -p bin/test && go test -tags e2e $(RACE) -c -o bin/test/e2e.test ./test/e2e
	hack/controlplane/get.sh $(E2E_PROGRAMS) >/dev/null

E2E_PROGRAMS := etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet
e2e-rotation: TESTS := CARotation|APIServersGetTheBundleLate
e2e-deployment: TESTS := Deployment|KilledRunLeavesNothing|BlockedKubelet
e2e-nodes: TESTS := MoveNodes
e2e-rotation e2e-deployment e2e-nodes: e2e-program
	place=$$(hack/controlplane/get.sh $(E2E_PROGRAMS)); set -a; eval "$$place"; set +a; \
	  cd test/e2e && exec ../../bin/test/e2e.test -test.v -test.parallel 8 -test.timeout 20m -test.run '^Test($(TESTS))$$'

# FORM is full or quick. SCENARIO selects scenarios, such as burst,trickle; BENCH_ARGS holds more flags of test/bench.
FORM ?= full

.PHONY: bench
bench: build ## measure the manager beside kube-controller-manager in every scenario, for hours; FORM=quick takes ten minutes, SCENARIO=burst selects one
	$(CONTROL_PLANE) go test -tags bench -count=1 -timeout 12h -v -run '^TestBench$$' ./test/bench \
	  -args -revision "$(VERSION)" -scenario "$(SCENARIO)" -form "$(FORM)" $(BENCH_ARGS)

.PHONY: nightly
nightly: ## run what takes too long for every change (hack/nightly/parts.yaml); PARTS=soak,fuzz selects parts, NIGHTLY_BUDGET=3h limits the time
	go build -o bin/nightly/runner ./hack/nightly
	@exec bin/nightly/runner -parts '$(PARTS)' -budget '$(NIGHTLY_BUDGET)'

SHELLCHECK := $(shell command -v shellcheck)

.PHONY: lint
lint: ## run golangci-lint, also in the modules hack/image, hack/docs, test/importer and test/kubernetes138, actionlint, and shellcheck if it is installed
	go tool -modfile=hack/actionlint.mod actionlint -shellcheck="$(SHELLCHECK)" -pyflakes=
	$(if $(SHELLCHECK),shellcheck -x -P . $$(git ls-files '*.sh' .ci),@echo "no shellcheck: the scripts are not checked")
	$(TOOL) golangci-lint run ./...
	for module in hack/image hack/docs test/importer test/kubernetes138; do (cd $$module && go tool -modfile=../../hack/tools.mod golangci-lint run ./...); done

.PHONY: generate
generate: ## generate roles and the API in config and their copies in the chart, docs/reference, the list of licences, and hack/api, the exported API
	$(TOOL) controller-gen object paths=./api/...
	$(TOOL) controller-gen crd paths=./api/... output:crd:dir=config/crd
	cp config/crd/csr-controller-manager.io_signingauthorities.yaml config/rotation/spec_policy.yaml config/rotation/cluster_role.yaml \
	  config/rotation/people.yaml \
	  charts/csr-controller-manager/files/rotation/
	cp config/request-limits/policy.yaml charts/csr-controller-manager/files/admission/request_limits.yaml
	cp config/overlays/hosted/home/kubeconfig charts/csr-controller-manager/files/hosted/
	cp config/overlays/authorization-files/{namespace,admission,role,daemonset}.yaml charts/csr-controller-manager/files/authorization/
	for controller in approver signer cleaner; do \
	  $(TOOL) controller-gen rbac:roleName=csr-$$controller,fileName=$$controller.yaml paths=./controllers/$$controller output:rbac:dir=config/rbac; \
	  cp config/rbac/$$controller.yaml charts/csr-controller-manager/files/; \
	done
	$(TOOL) controller-gen rbac:roleName=csr-kubelet-serving,fileName=role.yaml paths=./pkg/inventory/node output:rbac:dir=config/kubelet-serving
	for component in kubelet-serving node-identity approval-rules inventory-cluster-api inventory-openshift; do \
	  cp config/$$component/role.yaml charts/csr-controller-manager/files/components/$$component.yaml; \
	done
	hack/api.sh
	hack/licenses.sh
	$(MAKE) --no-print-directory docs

.PHONY: docs
docs: ## generate parts of docs/reference from the code
	out=$$(go test -count=1 -run '^(TestPages|TestReferencePage)$$' ./hack/reference ./pkg/config -update) || { echo "$$out" >&2; exit 1; }

.PHONY: verify
verify: ## check that generated files, modules, formatting, the list of the exported API and the documentation are up to date
	hack/verify.sh
