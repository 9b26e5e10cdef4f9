#!/usr/bin/env bash
# Compares this tree with another revision: the Go benchmarks, with benchstat, and the quick form of the scenarios.
#
#   hack/bench-compare.sh REVISION [SCENARIO,…]
#
# COUNT is the number of runs of each Go benchmark (default 6), interleaved. ROUNDS is the number of rounds of each
# scenario (default 3). The results are in bin/bench/compare.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
place=$(hack/controlplane/get.sh)
set -a && eval "$place" && set +a
base=$(git rev-parse --verify "$1^{commit}") || { echo "bench-compare: no revision $1" >&2; exit 2; }
export GOFLAGS=-trimpath # both trees share the build cache
out=$PWD/bin/bench/compare
packages=(./pkg/csr ./pkg/ca ./internal/ledger)

tree=$(mktemp -d)
trap 'git worktree remove --force "$tree/base" 2>/dev/null || true; rm -rf "$tree"' EXIT
git worktree add --quiet --detach "$tree/base" "$base"
rm -rf "$out" && mkdir -p "$out"

# An older revision may lack a package or a benchmark: benchstat then shows one side.
run() { (cd "$1" && go test -run '^$' -bench . -benchmem -benchtime 0.3s "${packages[@]}") | grep -E '^(goos|goarch|pkg|cpu|Benchmark)' >>"$2" || true; }
for ((i = 0; i < ${COUNT:-6}; i++)); do
  run "$tree/base" "$out/base.txt"
  run . "$out/this.txt"
done
go tool -modfile=hack/tools.mod benchstat "base=$out/base.txt" "this=$out/this.txt" | tee "$out/benchstat.txt"

build() { (cd "$1" && CGO_ENABLED=0 go build -trimpath -o "$2" .); }
build "$tree/base" "$tree/manager-base"
build . "$tree/manager"
go test -tags bench -count=1 -timeout 2h -v -run '^TestBench$' ./test/bench -args \
  -form quick -rounds "${ROUNDS:-3}" -scenario "${2:-}" -subjects ours,base -out "$out" \
  -binary "$tree/manager" -revision "$(git describe --tags --always --dirty)" \
  -base "$tree/manager-base" -base-revision "$(git describe --tags --always "$base")"
