#!/usr/bin/env bash
# Prints the section of CHANGELOG.md, or of the file CHANGELOG, for a version. A pre-release, such as v1.2.3-rc.1, needs no section.
# With COMMIT, the last line names the commit of the tag, which users verify.
#
#   hack/release/notes.sh VERSION [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
checkVersion "$1"
changelog=${CHANGELOG:-CHANGELOG.md}

# The section is the lines below the first title that is the version, or the version and a space.
notes=$(awk -v title="## $1" '
  /^## / { inside = !found && ($0 == title || index($0, title " ") == 1); found = found || inside; next }
  inside
' "$changelog")
[ -n "${notes//[[:space:]]/}" ] || [[ $1 == *-* ]] || die "$changelog has no section \"## $1\", or it is empty: write it"
printf '%s\n' "$notes"
[ -z "${2:-}" ] || printf '\n%s\n' "Commit: \`$2\`"
