#!/usr/bin/env bash
# Searches for known vulnerabilities that the code reaches: in the programs, and in the program that makes the image.
#
#   hack/vuln.sh DATABASE     address of a vulnerability database, or file:// and a folder with a copy
#   hack/vuln.sh --control    only check, without a network, that the search works
#
# First it searches hack/vuln, which reaches a known vulnerability. If the search misses that, the search proves nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "vuln: $*" >&2; }
(cd hack && go build -modfile=tools.mod -o "$work/govulncheck" golang.org/x/vuln/cmd/govulncheck)
database=$1
if [ "$1" = --control ]; then # the small database of govulncheck's own tests
  database=file://$(cd hack && go list -modfile=tools.mod -m -f '{{.Dir}}' golang.org/x/vuln)/cmd/govulncheck/testdata/common/vulndb-v1
fi

# scan searches module folder $1. It returns 3 if it finds a vulnerability, and exits on any other failure.
scan() {
  local status=0
  (cd "$1" && "$work/govulncheck" -db "$database" ./...) >"$work/found" 2>&1 || status=$?
  case $status in
    0 | 3) return $status ;;
    *) cat "$work/found" >&2; say "nothing was checked: the database at $database must be reachable; set VULNDB"; exit 1 ;;
  esac
}

if scan hack/vuln || ! grep -qF GO-2021-0113 "$work/found"; then
  cat "$work/found" >&2
  say "the search misses GO-2021-0113 in hack/vuln: the database or govulncheck does not work"
  exit 1
fi
say "the search finds the vulnerability in hack/vuln, as it must"
[ "$1" != --control ] || exit 0
status=0
for module in . hack/image; do
  if scan "$module"; then
    say "$module: no known vulnerability"
  else
    cat "$work/found"
    say "$module: update the modules or Go, as the list above says"
    status=3
  fi
done
exit $status
