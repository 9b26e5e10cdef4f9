#!/usr/bin/env bash
# Gets the control plane for demo, tests and benchmarks, and prints its paths, as lines for a shell or make:
#
#   hack/controlplane/get.sh [--built] [BINARY…]
#
# BINARY is one of etcd kube-apiserver kubectl (together: KUBEBUILDER_ASSETS), kube-controller-manager,
# kubelet, kube-scheduler, kubeadm (of the default version); without
# BINARY, all but the last three.
# K8S_VERSION selects the version (default 1.37.2). The first three come from KUBEBUILDER_ASSETS if it is set, else from an
# earlier call, else from a prebuilt download if the network permits it, else from a build of the modules that this folder
# pins, with the Go toolchain that their file names. Programs that Kubernetes does not publish as a prebuilt download for tests are always
# built. With --built all are: what others built has an older Go, whose API server reads no ML-DSA key.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=hack/go.env
. "$here/../go.env"
version=${K8S_VERSION:-1.37.2}
built=
[ "${1:-}" != --built ] || { built=yes; shift; }

say() { echo "controlplane: $*" >&2; }

pinned() { sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$@" | sort -V | tr '\n' ' '; }
modfile=$here/go-$version.mod
[ "$version " = "$(pinned "$here/go.mod")" ] && modfile=$here/go.mod
if [ ! -f "$modfile" ]; then
  say "no pins for Kubernetes $version: K8S_VERSION may be $(pinned "$here"/go*.mod)"
  exit 2
fi
programs=$here/../../bin/controlplane
mkdir -p "$programs" && programs=$(cd "$programs" && pwd)
toolchain=$(sed -n 's/^toolchain //p' "$modfile")
out=$programs/$toolchain/v$version prebuilt=$programs/prebuilt/v$version
mkdir -p "$out"
assets=
[ -n "$built" ] || assets=${KUBEBUILDER_ASSETS:-}
download_timeout=20s

package() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kube-apiserver | kube-controller-manager | kubectl | kubelet | kube-scheduler | kubeadm) echo "k8s.io/kubernetes/cmd/$1" ;;
    *) say "no such binary: $1"; exit 2 ;;
  esac
}

# download runs setup-envtest once for each version, so that a machine without network does not retry. Only the download
# has a time limit, not the build of setup-envtest.
download() {
  [ -e "$prebuilt" ] && { [ -x "$prebuilt/kubectl" ]; return; }
  local part dir
  part=$(mktemp -d "$programs/.prebuilt.XXXXXX")
  say "looking for a prebuilt control plane $version (at most $download_timeout)"
  (cd "$here/.." && go build -modfile=tools.mod -o "$part/setup-envtest" sigs.k8s.io/controller-runtime/tools/setup-envtest) || exit
  mkdir -p "$part/found"
  if dir=$(timeout "$download_timeout" "$part/setup-envtest" use "$version" --bin-dir "$part/store" -p path 2>/dev/null); then
    cp "$dir"/{etcd,kube-apiserver,kubectl} "$part/found" || exit
  fi
  mkdir -p "$(dirname "$prebuilt")" && mv "$part/found" "$prebuilt"
  chmod -R u+w "$part" && rm -rf "$part"
  [ -x "$prebuilt/kubectl" ]
}

build() {
  local name=$1 minor=${version#1.}
  local stamp=k8s.io/component-base/version
  say "building $name $version from source with $toolchain ($2); minutes the first time"
  local start=$SECONDS
  (cd "$here" && GOTOOLCHAIN=$toolchain CGO_ENABLED=0 go build -modfile="$modfile" -trimpath \
    -ldflags "-s -w -X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}" \
    -o "$out/$name.part" "$(package "$name")")
  mv "$out/$name.part" "$out/$name"
  say "built $name in $((SECONDS - start)) s"
}

wanted=("$@")
[ $# -gt 0 ] || wanted=(etcd kube-apiserver kubectl kube-controller-manager)
if [ -n "$assets" ]; then # all three or none, because they belong together
  for name in etcd kube-apiserver kubectl; do
    [ -x "$assets/$name" ] || { say "KUBEBUILDER_ASSETS has no $name: not used"; assets= ; break; }
  done
fi
count=0
for name in "${wanted[@]}"; do
  count=$((count + 1))
  package "$name" >/dev/null
  case $name in
    etcd | kube-apiserver | kubectl)
      [ -n "$assets" ] && continue
      [ -n "$built" ] || [ -x "$out/$name" ] || ! download || { assets=$prebuilt; continue; } ;;
  esac
  [ -x "$out/$name" ] || build "$name" "$count of ${#wanted[@]}"
done

printf '%s=%q\n' KUBEBUILDER_ASSETS "${assets:-$out}" \
  KUBE_CONTROLLER_MANAGER "$out/kube-controller-manager" \
  CONTROLPLANE "$out"
