#!/usr/bin/env bash
# Verifies that the builder has built what is in OUT: checksums.txt, each file in it, and the images by the digests that registries know.
#
#   hack/release/verify-build.sh VERSION OUT
#
# Without BUILDER_PUBLIC_KEY, the builder is the workflow build.yml at the commit that release.yml names. It must have been called by
# GITHUB_REPOSITORY, for the tag GITHUB_REF at the commit GITHUB_SHA: workflows of other repositories can call it, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 out=$2
checkVersion "$version"
buildTools

if [ -n "${BUILDER_PUBLIC_KEY:-}" ]; then
  signer=(--key "$BUILDER_PUBLIC_KEY" --insecure-ignore-tlog)
else
  signer=(--certificate-oidc-issuer "$issuer" --certificate-github-workflow-sha "${GITHUB_SHA:?}"
    --certificate-github-workflow-repository "${GITHUB_REPOSITORY:?}" --certificate-github-workflow-ref "${GITHUB_REF:?}"
    --certificate-identity "$(builder)")
fi

how=(verify-blob-attestation "${signer[@]}" --type slsaprovenance1 --bundle "$out/provenance.sigstore.json")
check "${how[@]}" "$out/checksums.txt"
(cd "$out" && sha256sum --quiet --strict -c checksums.txt)
while read -r _ file; do
  check "${how[@]}" "$out/${file#\*}"
done <"$out/checksums.txt"
for image in "$name" "$name-fips"; do
  digest=$(imageDigest "$out/${image}_$version.tar")
  check "${how[@]}" --digestAlg sha256 --digest "${digest#sha256:}"
done
