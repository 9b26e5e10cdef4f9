#!/usr/bin/env bash
# Prints the manifest of the kubectl plugin for Krew (https://krew.sigs.k8s.io), for the archives that build.sh writes to OUT.
#
#   hack/release/krew.sh VERSION OUT
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 out=$2
checkVersion "$version"
address=https://github.com/csr-controller-manager/csr-controller-manager

cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: csr
spec:
  version: $version
  homepage: $address
  shortDescription: Explain and approve certificate requests
  description: |
    Shows which CertificateSigningRequests wait, and why, what the manager
    csr-controller-manager said about them, and what to do. It approves
    requests by hand, checks that kubelets can join and renew, and operates
    the rotation of a signing CA.
  platforms:
END
for platform in "${pluginPlatforms[@]}"; do
  os=${platform%/*} arch=${platform#*/}
  folder=kubectl-csr_${version}_${os}_$arch
  sum=$(sha256sum <"$out/$folder.tar.gz")
  cat <<END
  - selector:
      matchLabels: {os: $os, arch: $arch}
    uri: $address/releases/download/$version/$folder.tar.gz
    sha256: ${sum%% *}
    bin: $folder/$(pluginProgram "$os")
END
done
