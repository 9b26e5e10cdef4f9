#!/usr/bin/env bash
# Signs what publish.sh published.
#
#   hack/release/sign.sh VERSION OUT
#
# Without COSIGN_KEY the signature is keyless: the workflow's identity, from GitHub's OIDC token, in a certificate of Fulcio, with an
# entry in the transparency log Rekor. With COSIGN_KEY, the path of a private key, it needs no network but the registry.
#
# Signed are the images, each platform of them, the chart, checksums.txt and references.txt. The SBOM of each platform's image is attested.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 out=$2
checkVersion "$version"
buildTools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

how=(--yes)
if [ -n "${COSIGN_KEY:-}" ]; then
  # A signing configuration without services: no Fulcio, no Rekor and no time stamp.
  echo '{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json"}' >"$work/services.json"
  how+=(--key "$COSIGN_KEY" --signing-config "$work/services.json")
fi

say "signing checksums.txt and references.txt"
for file in checksums.txt references.txt; do
  cosign sign-blob "${how[@]}" --bundle "$out/$file.sigstore.json" "$out/$file" >/dev/null
done

while IFS= read -r reference; do
  say "signing $reference"
  cosign sign "${how[@]}" --recursive "$reference"
done <"$out/references.txt"

mapfile -t references <"$out/references.txt" # the image, the one with the FIPS module, and the chart
for i in 0 1; do
  variant=$([ $i = 0 ] || echo -fips)
  for arch in amd64 arm64; do
    image=${references[i]%@*}@$(crane digest --platform "linux/$arch" "${references[i]}")
    say "attesting the SBOM of $image"
    cosign attest "${how[@]}" --type cyclonedx --predicate "$out/$name${variant}_$version-linux-$arch.cdx.json" "$image"
  done
done
