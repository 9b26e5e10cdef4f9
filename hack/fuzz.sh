#!/usr/bin/env bash
# Runs each fuzz target in the tree, one after the other. A failing input is written to testdata/fuzz.
#
#   hack/fuzz.sh DURATION [PATTERN]     PATTERN is a regular expression for the names of the targets
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
failed=
while read -r package target; do
  echo "== $package $target"
  go test -v -run '^$' -fuzz "^$target\$" -fuzzminimizetime 500ms -fuzztime "$1" "./$package" || failed="$failed $package/$target"
done < <(git grep -oE "^func (${2:-Fuzz[A-Za-z]+})\(" -- '*_test.go' | sed 's|/[^/]*:func | |; s|($||')
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
