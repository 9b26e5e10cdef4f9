#!/usr/bin/env bash
# Searches for known vulnerabilities that the code reaches.
#
#   hack/vuln.sh              in the manager, the plugin, and the program that makes the image
#   hack/vuln.sh --tools      in the tools with which a release is published: cosign, crane and helm
#   hack/vuln.sh --control    nowhere: only check, without a network, that the search works
#
# VULNDB is the address of the vulnerability database (default https://vuln.go.dev), or file:// and a folder with a copy.
#
# First it searches hack/vuln, which reaches a known vulnerability, as source and as a program. If the search misses that, the search proves
# nothing. The tools are searched as programs, because a search of cosign's source takes much more memory.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "vuln: $*" >&2; }
(cd hack && go build -modfile=tools.mod -o "$work/govulncheck" golang.org/x/vuln/cmd/govulncheck)
mode=${1:-} database=${VULNDB:-https://vuln.go.dev}
if [ "$mode" = --control ]; then # the small database of govulncheck's own tests
  database=file://$(cd hack && go list -modfile=tools.mod -m -f '{{.Dir}}' golang.org/x/vuln)/cmd/govulncheck/testdata/common/vulndb-v1
fi

# scan searches the module in folder $1, or the program in file $1. It returns 3 if it finds a vulnerability, and exits on any other failure.
scan() {
  local status=0
  if [ -d "$1" ]; then
    (cd "$1" && "$work/govulncheck" -db "$database" ./...) >"$work/found" 2>&1 || status=$?
  else
    "$work/govulncheck" -db "$database" -mode=binary "$1" >"$work/found" 2>&1 || status=$?
  fi
  case $status in
    0 | 3) return $status ;;
    *) cat "$work/found" >&2; say "nothing was checked: the database at $database must be reachable; set VULNDB"; exit 1 ;;
  esac
}

(cd hack/vuln && go build -o "$work/vuln" .)
for known in hack/vuln "$work/vuln"; do
  if scan "$known" || ! grep -qF GO-2021-0113 "$work/found"; then
    cat "$work/found" >&2
    say "the search misses GO-2021-0113 in $known: the database or govulncheck does not work"
    exit 1
  fi
done
say "the search finds the vulnerability in hack/vuln, as it must"
[ "$mode" != --control ] || exit 0
searched=(. hack/image)
if [ "$mode" = --tools ]; then
  # With symbols, unlike buildTools in hack/release/lib.sh: without them, each vulnerability of a module counts.
  mkdir "$work/tools"
  CGO_ENABLED=0 go build -modfile=hack/release.mod -trimpath -o "$work/tools/" \
    github.com/sigstore/cosign/v3/cmd/cosign github.com/google/go-containerregistry/cmd/crane
  go build -modfile=hack/helm.mod -o "$work/tools/" helm.sh/helm/v4/cmd/helm
  searched=("$work"/tools/*)
fi
status=0
for each in "${searched[@]}"; do
  if scan "$each"; then
    say "${each#"$work/"}: no known vulnerability"
  else
    cat "$work/found"
    say "${each#"$work/"}: update the modules or Go, as the list above says"
    status=3
  fi
done
exit $status
