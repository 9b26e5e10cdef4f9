#!/usr/bin/env bash
# Verifies a release as its users do: the build, signatures, references and SBOMs.
#
#   hack/release/verify.sh VERSION REGISTRY OUT
#
# OUT is the folder with all files of the release. Without COSIGN_PUBLIC_KEY, the signer must be the release workflow of GITHUB_REPOSITORY, run
# for the tag GITHUB_REF at the commit GITHUB_SHA.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 registry=${2,,} out=$3
checkVersion "$version"
buildTools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -n "${COSIGN_PUBLIC_KEY:-}" ]; then
  signer=(--key "$COSIGN_PUBLIC_KEY" --insecure-ignore-tlog)
else
  signer=(--certificate-oidc-issuer "$issuer" --certificate-github-workflow-sha "${GITHUB_SHA:?}"
    --certificate-identity "$(identity)")
fi

for file in checksums.txt references.txt; do
  check verify-blob "${signer[@]}" --bundle "$out/$file.sigstore.json" "$out/$file"
done
hack/release/verify-build.sh "$version" "$out"

# The references are the three of this release, and hold the images and the chart in checksums.txt.
mapfile -t references <"$out/references.txt"
[ ${#references[@]} = 3 ] || die "references.txt has ${#references[@]} lines, not 3"
image=$(imageDigest "$out/${name}_$version.tar")
fips=$(imageDigest "$out/$name-fips_$version.tar")
[ "${references[0]}" = "$registry/$name@$image" ] || die "references.txt, line 1: not $registry/$name@$image"
[ "${references[1]}" = "$registry/$name@$fips" ] || die "references.txt, line 2: not $registry/$name@$fips"
chart=${references[2]}
[[ $chart =~ ^"$registry/charts/$name"@sha256:[0-9a-f]{64}$ ]] || die "references.txt, line 3: not a digest of $registry/charts/$name"
crane manifest "$chart" >"$work/chart"
hasChart "$work/chart" "$chart" "$out/$name-${version#v}.tgz"

for reference in "${references[@]}"; do
  check verify "${signer[@]}" "$reference"
done
for reference in "${references[@]:0:2}"; do
  for arch in amd64 arm64; do
    platform=${reference%@*}@$(crane digest --platform "linux/$arch" "$reference")
    check verify "${signer[@]}" "$platform"
    check verify-attestation "${signer[@]}" --type cyclonedx "$platform"
  done
done
say "verified $(wc -l <"$out/checksums.txt") files and ${#references[@]} references"
