#!/usr/bin/env bash
# Verifies that the builder has built what is in OUT: checksums.txt, each file in it, and the images by the digests that registries know.
#
#   hack/release/verify-build.sh VERSION OUT
#
# Without BUILDER_PUBLIC_KEY, the builder is the workflow build.yml at the commit that release.yml names, called for the tag GITHUB_REF of
# GITHUB_REPOSITORY.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 out=$2
checkVersion "$version"
buildTools

if [ -n "${BUILDER_PUBLIC_KEY:-}" ]; then
  who=(--key "$BUILDER_PUBLIC_KEY" --insecure-ignore-tlog)
else
  who=(--certificate-identity "$(builder)" --certificate-oidc-issuer "$issuer"
    --certificate-github-workflow-repository "${GITHUB_REPOSITORY:?}" --certificate-github-workflow-ref "${GITHUB_REF:?}")
fi

how=(verify-blob-attestation "${who[@]}" --type slsaprovenance1 --bundle "$out/provenance.sigstore.json")
check "${how[@]}" "$out/checksums.txt"
(cd "$out" && sha256sum --quiet --strict -c checksums.txt)
while read -r _ file; do
  check "${how[@]}" "$out/${file#\*}"
done <"$out/checksums.txt"
for image in "$name" "$name-fips"; do
  digest=$(imageDigest "$out/${image}_$version.tar")
  check "${how[@]}" --digestAlg sha256 --digest "${digest#sha256:}"
done
