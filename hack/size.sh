#!/usr/bin/env bash
# Prints the size of the code: how much of it a reader must hold in mind. It fails if a number is above its limit in hack/size.txt.
#
#   production-lines     lines of Go, without tests, generated code, test/ and hack/
#   production-files     their files
#   functions-per-1000   their top-level functions and methods, for 1,000 of their lines, rounded up
#   test-lines           lines of _test.go files, and of all Go in test/
#
# "make verify" runs it. Lower a limit when a number has become smaller. Never join lines for it.
set -euo pipefail
cd "$(dirname "$0")/.."
all=$(git ls-files --cached --others --exclude-standard '*.go' | grep -v zz_generated | while read -r file; do [ ! -e "$file" ] || echo "$file"; done)
production=$(grep -vE '_test\.go$|^test/|^hack/' <<<"$all")
tests=$(grep -E '_test\.go$|^test/' <<<"$all")
lines=$(xargs cat <<<"$production" | wc -l)
functions=$(xargs cat <<<"$production" | grep -c '^func ')
status=0
while read -r name limit; do
  case $name in
    production-lines) got=$lines ;;
    production-files) got=$(wc -l <<<"$production") ;;
    functions-per-1000) got=$(((functions * 1000 + lines - 1) / lines)) ;;
    test-lines) got=$(xargs cat <<<"$tests" | wc -l) ;;
    *) echo "size: hack/size.txt: unknown number $name" >&2 && exit 1 ;;
  esac
  printf '%-20s %6d   limit %6d\n' "$name" "$got" "$limit"
  if [ "$got" -gt "$limit" ]; then
    echo "size: $name is above its limit: simplify, or say in the commit why the code must grow and raise the limit in hack/size.txt" >&2
    status=1
  fi
done <hack/size.txt
exit $status
