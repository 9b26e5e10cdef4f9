#!/usr/bin/env bash
# Checks the licences of the modules that the programs link on linux/amd64 and linux/arm64, and lists them in docs/reference/licenses.md.
#
#   hack/licenses.sh                  check and list
#   hack/licenses.sh --save FOLDER    copy the texts of the licences to FOLDER
#
# It fails if a module has another licence, or none that go-licenses recognizes.
set -euo pipefail
cd "$(dirname "$0")/.."
own=github.com/csr-controller-manager/csr-controller-manager
page=docs/reference/licenses.md
permitted=Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT # licences that permit to distribute the programs in binary form
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd hack && go build -modfile=tools.mod -o "$work/go-licenses" github.com/google/go-licenses/v2)

# licenses runs go-licenses for architecture $1 and prints its log only if it fails: it warns about each file that is not Go. It must not
# ask the Internet for the address of each licence, which nothing here uses.
licenses() {
  local arch=$1 command=$2
  shift 2
  CGO_ENABLED=0 GOOS=linux GOARCH=$arch HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9 \
    "$work/go-licenses" "$command" . ./cmd/kubectl-csr --ignore "$own" "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}

if [ "${1:-}" = --save ]; then
  for arch in amd64 arm64; do
    licenses $arch save --save_path "$work/$arch"
    chmod -R u+w "$work/$arch"
    mkdir -p "$2" && cp -r "$work/$arch/." "$2"
  done
  cp "$(go env GOROOT)/LICENSE" "$2/go.LICENSE" # of the standard library, which go-licenses leaves out
  exit
fi

cat >"$work/template" <<'TEMPLATE'
{{range .}}| `{{.Name}}` | {{.LicenseName}} |
{{end}}
TEMPLATE
{
  cat <<'HEAD'
# Licences

<!-- Written by hack/licenses.sh. Do not edit. -->

csr-controller-manager has the [Apache License 2.0](../../LICENSE). This page lists the licences of the modules that the programs link.
[hack/licenses.sh](../../hack/licenses.sh), which `make generate` runs, reads them from the modules. `make verify` fails if the list is out of
date or contains a licence that the script does not permit. Each archive of a release contains the texts.

| part of | licence |
|---|---|
| Go's standard library | BSD-3-Clause |
HEAD
  for arch in amd64 arm64; do
    licenses $arch check --allowed_licenses "$permitted" >&2
    licenses $arch report --template "$work/template"
  done | grep '^|' | LC_ALL=C sort -u
} >"$work/page"
cp "$work/page" "$page"
