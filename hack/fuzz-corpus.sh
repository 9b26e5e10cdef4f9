#!/usr/bin/env bash
# Grows the committed corpus of fuzz targets, from the inputs that hack/fuzz.sh keeps in Go's cache. It adds an input only
# if it covers code that the seeds, the corpus and the inputs added before do not cover, or runs it another power of two
# times: the same measure by which Go keeps inputs. The smallest inputs come first.
# Usage: hack/fuzz-corpus.sh [PATTERN], where PATTERN is a regular expression for the names of the targets.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
pattern=${1:-Fuzz[A-Za-z]+}
module=$(go list -m)
cache=$(go env GOCACHE)/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
most=1000       # inputs to try for each target
largest=4096    # bytes of an input

# covered prints the blocks that the last run covered, each with the power of two of how often it ran.
covered() { awk '$1 != "mode:" && $NF > 0 { print $1, int(log($NF) / log(2)) }' "$work/profile" | sort -u; }

git grep -oE "^func ($pattern)\(" -- '*_test.go' | sed 's|/[^/]*:func | |; s|($||' | while read -r package target; do
  found="$cache/$module/$package/$target"
  [ -d "$found" ] || { echo "$package $target: nothing in the cache"; continue; }
  corpus="$package/testdata/fuzz/$target"
  mkdir -p "$corpus"
  # The packages of the module that the tests of this package reach, because a target often tests more than its own.
  reached=$(go list -deps -test -f '{{if not .ForTest}}{{.ImportPath}}{{end}}' "./$package" | grep "^$module/" | grep -v '\.test$' | paste -sd,)
  go test -c -covermode=count -coverpkg="$reached" -o "$work/test" "./$package"
  run() { (cd "$package" && "$work/test" -test.run "^$target\$$1" -test.coverprofile="$work/profile" >"$work/out" 2>&1); }
  run "" || { cat "$work/out" >&2; exit 1; }
  covered >"$work/known"
  added=0
  while read -r input; do
    name=$(basename "$input")
    [ -e "$corpus/$name" ] && continue
    cp "$input" "$corpus/$name"
    if run "/^$name\$" && covered | comm -13 "$work/known" - | grep -q .; then
      covered | sort -u - "$work/known" -o "$work/known"
      added=$((added + 1))
    else
      rm "$corpus/$name"
    fi
  done < <(find "$found" -type f -size "-${largest}c" -printf '%s %p\n' | sort -n | head -n "$most" | cut -d' ' -f2-)
  rmdir --ignore-fail-on-non-empty "$corpus"
  echo "$package $target: $added added"
done
