#!/usr/bin/env bash
# Pushes the images and the chart that build.sh built.
#
#   hack/release/publish.sh VERSION REGISTRY OUT
#
# OUT gets references.txt: a name and a digest for each of the three. If the registry has one of the three tags with another content, or
# does not say whether it has it, nothing is pushed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 registry=${2,,} out=$3
checkVersion "$version"
(cd "$out" && sha256sum --quiet --strict -c checksums.txt)
buildTools
if [ -n "${REGISTRY_TOKEN:-}" ]; then # cosign and helm read it, too
  crane auth login "${registry%%/*}" --username "${GITHUB_ACTOR:?}" --password-stdin <<<"$REGISTRY_TOKEN"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# published gets the manifest of reference $1 into file $2. It returns 1 if the registry has no such tag, and exits on any other error.
published() {
  crane manifest "$1" >"$2" 2>"$work/error" && return 0
  isMissing "$(cat "$work/error")" && return 1
  cat "$work/error" >&2
  die "can't find out whether $1 exists: nothing was pushed"
}

# checkImage exits if the registry has tag $1 with another digest than $2.
checkImage() {
  local sum
  published "$1" "$work/manifest" || return 0
  sum=$(sha256sum <"$work/manifest")
  [ "sha256:${sum%% *}" = "$2" ] || die "$1 exists with digest sha256:${sum%% *}, not $2: release another version"
}

# pushImage pushes the image with digest $3 in archive $1 as $2, and prints its reference.
pushImage() {
  local layout=$work/${2##*:}
  mkdir "$layout" && tar -xf "$1" -C "$layout"
  [ "$(crane push "$layout" "$2")" = "${2%:*}@$3" ] || die "$2 has another digest than $1"
  echo "${2%:*}@$3"
}

# pushChart pushes the chart in file $1 to the registry, and prints its reference. The digest is the one that helm pushed, not the one
# that the tag has now.
pushChart() {
  local digest plain=()
  isLocal "$registry" && plain=(--plain-http)
  touch -d "@$(git log -1 --format=%ct)" "$1" # helm writes the age of the file into the manifest
  digest=$(helm push "$1" "oci://$registry/charts" "${plain[@]}" 2>&1 | tee -a /dev/stderr | sed -n 's/^Digest: *//p')
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "helm push printed no digest"
  published "$registry/charts/$name@$digest" "$work/pushed" || die "the registry does not have $registry/charts/$name@$digest"
  hasChart "$work/pushed" "$registry/charts/$name@$digest" "$1"
  echo "$registry/charts/$name@$digest"
}

image=$out/${name}_$version.tar fips=$out/$name-fips_$version.tar chart=$name-${version#v}.tgz
imageDigest=$(imageDigest "$image")
fipsDigest=$(imageDigest "$fips")
checkImage "$registry/$name:$version" "$imageDigest"
checkImage "$registry/$name:$version-fips" "$fipsDigest"
chartTag=$registry/charts/$name:${version#v}
if published "$chartTag" "$work/manifest"; then hasChart "$work/manifest" "$chartTag" "$out/$chart"; fi

cp "$out/$chart" "$work"
{
  pushImage "$image" "$registry/$name:$version" "$imageDigest"
  pushImage "$fips" "$registry/$name:$version-fips" "$fipsDigest"
  pushChart "$work/$chart"
} >"$work/references.txt"
cp "$work/references.txt" "$out"
say "published:"
cat "$out/references.txt" >&2
