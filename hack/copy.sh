#!/usr/bin/env bash
# Copies the tree, with uncommitted changes and without ignored files.
#
#   hack/copy.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --null -T - -cf - | tar -xf - -C "$1"
