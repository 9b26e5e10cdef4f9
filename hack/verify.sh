#!/usr/bin/env bash
# Regenerates everything in a copy of the tree and compares. It works with uncommitted changes and changes no file.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
hack/copy.sh "$copy"
(
  cd "$copy"
  make --no-print-directory generate >/dev/null
  go mod tidy
  (cd hack && for file in tools helm krew gremlins actionlint; do go mod verify -modfile=$file.mod >/dev/null; done)
  for module in hack/image hack/docs test/importer test/kubernetes138; do (cd $module && go mod tidy && go mod verify >/dev/null); done
  gofmt -l -w . >/dev/null
)
status=0
for path in config/rbac config/crd config/kubelet-serving config/node-identity charts/csr-controller-manager/files docs/reference hack/api go.mod go.sum {hack/image,hack/docs,test/importer,test/kubernetes138}/go.{mod,sum} $(git ls-files --cached --others --exclude-standard '*.go'); do
  [ -e "$path" ] || continue
  diff -ru "$path" "$copy/$path" || status=1
done
[ $status -eq 0 ] || echo "verify: run 'make generate', 'go mod tidy' and 'gofmt -w .'" >&2
hack/size.sh || status=1
hack/vuln.sh --control || status=1
for module in hack/docs test/importer test/kubernetes138; do (cd $module && go vet ./... && go test -count=1 ./...) || status=1; done
# A program that was built by hand does not belong into the repository.
large=$(git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'find "$@" -maxdepth 0 -size +1M' sh 2>/dev/null || true)
if [ -n "$large" ]; then
  echo "verify: larger than 1 MiB: $large" >&2
  status=1
fi
# The kubectl plugin judges nothing again and holds no key, so it links no controller. The same search must find them in the
# manager, or it proves nothing.
controllers='^(sigs\.k8s\.io/controller-runtime|github\.com/prometheus|github\.com/csr-controller-manager/csr-controller-manager/controllers)(/|$)'
if go list -deps ./cmd/kubectl-csr | grep -E "$controllers"; then
  echo "verify: the kubectl plugin links these packages: only the manager may" >&2
  status=1
fi
CGO_ENABLED=0 go build -trimpath -o "$copy/kubectl-csr" ./cmd/kubectl-csr
size=$(wc -c <"$copy/kubectl-csr") limit=41285000
if [ "$(go env GOOS GOARCH | paste -sd/)" = linux/amd64 ] && [ "$size" -gt $limit ]; then
  echo "verify: the kubectl plugin has $size bytes, more than $limit: find out what it links now" >&2
  status=1
fi
if ! go list -deps . | grep -cE "$controllers" >/dev/null; then
  echo "verify: the search for packages of controllers finds none in the manager: correct the search" >&2
  status=1
fi
# Only who wants conditions in approval rules links CEL. The same search must find it in the manager, or it proves nothing.
cel='^(github\.com/google/cel-go|cel\.dev/expr)(/|$)'
if go list -deps ./pkg/rules ./csrenv | grep -E "$cel"; then
  echo "verify: pkg/rules or csrenv links these packages: only pkg/rules/cel may" >&2
  status=1
fi
if ! go list -deps . | grep -cE "$cel" >/dev/null; then
  echo "verify: the search for CEL finds none in the manager: correct the search" >&2
  status=1
fi
# A suite that imports csrenv links little more than a manager and envtest, which are about 600 packages. A count of few packages would
# mean that the listing is wrong.
packages=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./csrenv | grep -c .) most=650
if [ "$packages" -gt $most ] || [ "$packages" -lt 500 ]; then
  echo "verify: csrenv links $packages packages that are not of the standard library, want 500 to $most: find out which are new" >&2
  status=1
fi
# Programs with clients of their own import the judgement: it links the API's types, and neither controller-runtime nor CEL.
packages=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./pkg/judge/... | grep -c .) most=140
if [ "$packages" -gt $most ] || [ "$packages" -lt 50 ]; then
  echo "verify: pkg/judge links $packages packages that are not of the standard library, want 50 to $most: find out which are new" >&2
  status=1
fi
if go list -deps ./pkg/judge/... | grep -E "$cel|$controllers"; then
  echo "verify: pkg/judge links these packages: a program without them could not import it" >&2
  status=1
fi
exit $status
