#!/usr/bin/env bash
# Writes hack/api/PACKAGE.txt, the exported API of each package that other modules may import, as "go doc" prints it, without comments. A
# change of the API is then a change of a committed file, so a reviewer sees it. "make generate" runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
module=$(go list -m)
find hack/api -name '*.txt' -delete
for package in $(go list ./api/... ./csrenv ./controllers/... ./pkg/...); do
  declarations=$(go doc -all "$package" | awk '
    /^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$/ { inside = 1; next } # above is the comment of the package
    !inside || /^    / || /^\t*\/\// || /^$/ { next }
    { sub(/ +\/\/ .*/, ""); print }
  ')
  [ -n "$declarations" ] || continue
  file=hack/api/${package#"$module/"}.txt
  mkdir -p "$(dirname "$file")"
  echo "$declarations" >"$file"
done
