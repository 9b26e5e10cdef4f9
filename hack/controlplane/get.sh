#!/usr/bin/env bash
# Gets the control plane for demo, tests and benchmarks, and prints its paths, as lines for a shell or make:
#
#   hack/controlplane/get.sh [BINARY…]
#
# BINARY is one of etcd kube-apiserver kubectl (together: KUBEBUILDER_ASSETS), kube-controller-manager,
# kubelet, kube-scheduler, kubeadm (of the default version); without
# BINARY, all but the last three.
# K8S_VERSION selects the version (default 1.37.1). The first three come from KUBEBUILDER_ASSETS if it is set, else from an
# earlier call, else from a prebuilt download if the network permits it, else from a build of the modules that this folder
# pins. Programs that Kubernetes does not publish as a prebuilt download for tests are always built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=${K8S_VERSION:-1.37.1}
out=$here/../../bin/controlplane/v$version
mkdir -p "$out" && out=$(cd "$out" && pwd)
assets=${KUBEBUILDER_ASSETS:-}
download_timeout=20s

say() { echo "controlplane: $*" >&2; }

pinned() { sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$@" | sort -V | tr '\n' ' '; }
modfile=$here/go-$version.mod
[ "$version " = "$(pinned "$here/go.mod")" ] && modfile=$here/go.mod
if [ ! -f "$modfile" ]; then
  say "no pins for Kubernetes $version: K8S_VERSION may be $(pinned "$here"/go*.mod)"
  exit 2
fi

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
  [ -e "$out/.no-download" ] && return 1
  local tool=$out/.setup-envtest dir name
  say "looking for a prebuilt control plane $version (at most $download_timeout)"
  (cd "$here/.." && go build -modfile=tools.mod -o "$tool" sigs.k8s.io/controller-runtime/tools/setup-envtest)
  if dir=$(timeout "$download_timeout" "$tool" use "$version" --bin-dir "$out/.download" -p path 2>/dev/null); then
    for name in etcd kube-apiserver kubectl; do
      cp "$dir/$name" "$out/$name.part" && mv "$out/$name.part" "$out/$name"
    done
    chmod -R u+w "$out/.download" && rm -rf "$out/.download" "$tool"
    return 0
  fi
  rm -rf "$out/.download" "$tool"
  touch "$out/.no-download"
  return 1
}

build() {
  local name=$1 minor=${version#1.}
  local stamp=k8s.io/component-base/version
  say "building $name $version from source ($2); minutes the first time"
  local start=$SECONDS
  (cd "$here" && CGO_ENABLED=0 go build -modfile="$modfile" -trimpath \
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
      [ -x "$out/$name" ] || download || true ;;
  esac
  [ -x "$out/$name" ] || build "$name" "$count of ${#wanted[@]}"
done

printf '%s=%q\n' KUBEBUILDER_ASSETS "${assets:-$out}" \
  KUBE_CONTROLLER_MANAGER "$out/kube-controller-manager" \
  CONTROLPLANE "$out"
