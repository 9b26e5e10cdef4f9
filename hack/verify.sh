#!/usr/bin/env bash
# Regenerates everything in a copy of the tree and compares. It works with uncommitted changes and changes no file.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ -e "$file" ] && printf '%s\0' "$file"
done | tar --null -T - -cf - | tar -xf - -C "$copy"
(
  cd "$copy"
  make --no-print-directory generate >/dev/null
  make --no-print-directory licenses >/dev/null
  go mod tidy
  (cd hack && for file in tools helm gremlins actionlint; do go mod verify -modfile=$file.mod >/dev/null; done)
  for module in hack/image hack/docs; do (cd $module && go mod tidy && go mod verify >/dev/null); done
  gofmt -l -w . >/dev/null
)
status=0
for path in config/rbac config/crd config/kubelet-serving config/node-identity charts/csr-controller-manager/files docs/reference go.mod go.sum hack/{image,docs}/go.{mod,sum} $(git ls-files --cached --others --exclude-standard '*.go'); do
  [ -e "$path" ] || continue
  diff -ru "$path" "$copy/$path" || status=1
done
[ $status -eq 0 ] || echo "verify: run 'make generate licenses', 'go mod tidy' and 'gofmt -w .'" >&2
go run ./hack/api -verify || status=1
hack/vuln.sh --control || status=1
make --no-print-directory docs-check || status=1
# A program that was built by hand does not belong into the repository.
large=$(git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'find "$@" -maxdepth 0 -size +1M' sh 2>/dev/null || true)
if [ -n "$large" ]; then
  echo "verify: larger than 1 MiB: $large" >&2
  status=1
fi
# The manager holds the CA key, so it links nothing of kubectl. The same search must find it in the plugin, or it proves
# nothing.
kubectl='^k8s\.io/(cli-runtime|kubectl)(/|$)'
if go list -deps . | grep -E "$kubectl"; then
  echo "verify: the manager links these packages of kubectl: only cmd/kubectl-csr may" >&2
  status=1
fi
if ! go list -deps ./cmd/kubectl-csr | grep -cE "$kubectl" >/dev/null; then
  echo "verify: the search for packages of kubectl finds none in cmd/kubectl-csr: correct the search" >&2
  status=1
fi
exit $status
