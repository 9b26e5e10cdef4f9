#!/usr/bin/env bash
# Checks the licences of the modules that the programs link on the platforms of a release, and lists them in docs/reference/licenses.md.
#
#   hack/licenses.sh                  check and list
#   hack/licenses.sh --save FOLDER    copy the texts of the licences to FOLDER
#
# It fails if a module has another licence, or none that go-licenses recognizes.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/release/lib.sh
own=github.com/csr-controller-manager/csr-controller-manager
page=docs/reference/licenses.md
permitted=Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT # licences that permit to distribute the programs in binary form
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd hack && go build -modfile=tools.mod -o "$work/go-licenses" github.com/google/go-licenses/v2)
go mod download # also the modules of other platforms: licenses has no proxy to download them through

# licenses runs go-licenses for platform $1 and prints its log only if it fails: it warns about each file that is not Go. It must not
# ask the Internet for the address of each licence, which nothing here uses.
licenses() {
  local platform=$1 command=$2 programs=(./cmd/kubectl-csr)
  [[ $platform != linux/* ]] || programs+=(.)
  shift 2
  CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9 \
    "$work/go-licenses" "$command" "${programs[@]}" --ignore "$own" "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}

if [ "${1:-}" = --save ]; then
  for platform in "${pluginPlatforms[@]}"; do
    licenses "$platform" save --save_path "$work/$platform"
    chmod -R u+w "$work/$platform"
    mkdir -p "$2" && cp -r "$work/$platform/." "$2"
  done
  cp "$(go env GOROOT)/LICENSE" "$2/go.LICENSE" # of the standard library, which go-licenses leaves out
  exit
fi

cat >"$work/template" <<'TEMPLATE'
{{range .}}{{.LicenseName}} {{.Name}}
{{end}}
TEMPLATE
{
  cat <<'HEAD'
# Licences

<!-- Written by hack/licenses.sh. Do not edit. -->

csr-controller-manager has the [Apache License 2.0](../../LICENSE). The programs link these modules. Each archive of a release has the texts.
[hack/licenses.sh](../../hack/licenses.sh) fails if it does not permit a licence.
HEAD
  {
    echo 'BSD-3-Clause Go'
    for platform in "${pluginPlatforms[@]}"; do
      licenses "$platform" check --allowed_licenses "$permitted" >&2
      licenses "$platform" report --template "$work/template"
    done | grep .
  } | LC_ALL=C sort -u | awk '$1 != last { printf "%s\n**%s**: `%s`", last ? ".\n" : "", $1, $2; last = $1; next } { printf ", `%s`", $2 } END { print "." }'
} >"$work/page"
cp "$work/page" "$page"
