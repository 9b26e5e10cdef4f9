#!/usr/bin/env bash
# Gets the programs and files for test/monitoring, and prints their paths, as lines for a shell or make: Prometheus and
# promtool, built from the module that this folder pins, and the prometheus-operator's CustomResourceDefinitions, from its
# module.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=hack/go.env
. "$here/../go.env"
operator=v0.85.0
operator_sum=h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=

say() { echo "monitoring: $*" >&2; }

version=$(sed -n 's/^\tgithub.com\/prometheus\/prometheus \(v[0-9.]*\).*/\1/p' "$here/go.mod")
out=$here/../../bin/monitoring/prometheus-$version
mkdir -p "$out" && out=$(cd "$out" && pwd)

# Build without the service discovery of two dozen clouds, which is most of the build.
build() {
  say "building $1 $version from source; minutes the first time"
  local start=$SECONDS
  (cd "$here" && CGO_ENABLED=0 go build -trimpath -tags remove_all_sd -ldflags "-s -w" \
    -o "$out/$1.part" "github.com/prometheus/prometheus/cmd/$1")
  mv "$out/$1.part" "$out/$1"
  say "built $1 in $((SECONDS - start)) s"
}

crds() {
  local module=github.com/prometheus-operator/prometheus-operator answer
  say "getting the CustomResourceDefinitions of the prometheus-operator $operator"
  answer=$(cd "$here" && go mod download -json "$module@$operator")
  grep -qF "\"Sum\": \"$operator_sum\"" <<<"$answer" || { say "$module@$operator is not what it was: $answer"; exit 1; }
  mkdir -p "$1.part"
  cp "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$answer")"/example/prometheus-operator-crd/monitoring.coreos.com_{prometheusrules,servicemonitors}.yaml "$1.part"
  mv "$1.part" "$1"
}

for name in prometheus promtool; do
  [ -x "$out/$name" ] || build "$name"
done
crds=$out/../crds-$operator
[ -d "$crds" ] || crds "$crds"

printf '%s=%q\n' PROMETHEUS "$out/prometheus" PROMTOOL "$out/promtool" PROMETHEUS_CRDS "$(cd "$crds" && pwd)"
