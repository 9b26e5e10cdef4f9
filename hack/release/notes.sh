#!/usr/bin/env bash
# Prints the section of CHANGELOG.md, or of the file CHANGELOG, for a version. A pre-release, such as v1.2.3-rc.1, uses the section
# "Unreleased". If that is empty, as just after a release, it uses the section of the newest release.
# With COMMIT, the last line names the commit of the tag, which users verify.
#
#   hack/release/notes.sh VERSION [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
checkVersion "$1"
changelog=${CHANGELOG:-CHANGELOG.md}

# section prints the lines below the first title that starts with $1 and then ends or has a space.
section() {
  awk -v title="## $1" '
    /^## / { inside = !found && ($0 == title || index($0, title " ") == 1); found = found || inside; next }
    inside
  ' "$changelog"
}

titles=("$1")
[[ $1 != *-* ]] || titles=(Unreleased "$(sed -n 's/^## \(v[^ ]*\).*/\1/p' "$changelog" | head -n 1)")
for title in "${titles[@]}"; do
  notes=$(section "$title")
  [ -n "${notes//[[:space:]]/}" ] || continue
  printf '%s\n' "$notes"
  [ -z "${2:-}" ] || printf '\n%s\n' "Commit: \`$2\`"
  exit 0
done
die "$changelog has no section \"## $1\", or it is empty: rename \"## Unreleased\""
