#!/usr/bin/env bash
# Builds everything that a release contains. The same commit, version, registry and Go give the same bytes.
#
#   hack/release/build.sh VERSION REGISTRY OUT
#
# REGISTRY is where the image and the chart will be published, such as ghcr.io/OWNER: it is the default repository in the chart.
# OUT gets, for each platform, an archive of the manager, one of the manager with the FIPS 140-3 module of Go, and one of the kubectl
# plugin; csr.yaml, the manifest of the plugin for Krew; the image with and without that module; SBOMs; the chart; checksums.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=$1 registry=${2,,} out=$3
unset GOFIPS140 # only the programs that ask for the module get it

checkVersion "$version"
[ -z "$(git status --porcelain)" ] || die "the tree has uncommitted changes: commit or remove them"
[ ! -e "$out" ] || [ -z "$(ls -A "$out")" ] || die "$out is not empty"
mkdir -p "$out" && out=$(cd "$out" && pwd)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile builds package $4 for $1 on architecture $2 as file $3, with the flags of hack/image.
compile() {
  CGO_ENABLED=0 GOOS=$1 GOARCH=$2 GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' GOWORK=off \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${5:-$version}" -o "$3" "$4"
}

# prepare makes folder $1 in $work, with the licences.
prepare() { mkdir "$work/$1" && cp LICENSE "$work/$1" && cp -r "$work/licenses" "$work/$1/licenses"; }

# pack writes folder $2, which is in $1, to the archive $3, without its owner and age.
pack() {
  find "$1/$2" -type d -exec chmod 755 {} + -o -type f -perm -u+x -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
  tar -C "$1" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -9 -n >"$3"
}

say "licences of the linked modules"
hack/licenses.sh --save "$work/licenses"

for arch in amd64 arm64; do
  say "manager for linux/$arch"
  folder=${name}_${version}_linux_$arch fipsFolder=$name-fips_${version}_linux_$arch
  prepare "$folder"
  compile linux $arch "$work/$folder/$name" .
  pack "$work" "$folder" "$out/$folder.tar.gz"
  prepare "$fipsFolder"
  GOFIPS140=$fipsModule compile linux $arch "$work/$fipsFolder/$name" . "$version-fips"
  pack "$work" "$fipsFolder" "$out/$fipsFolder.tar.gz"
done

(cd hack/image && go build -o "$work/image" .)
for platform in "${pluginPlatforms[@]}"; do
  say "kubectl plugin for $platform"
  os=${platform%/*} arch=${platform#*/}
  folder=kubectl-csr_${version}_${os}_$arch
  program=$work/$folder/$(pluginProgram "$os")
  prepare "$folder"
  compile "$os" "$arch" "$program" ./cmd/kubectl-csr
  "$work/image" -sbom "$program" -out "$out/kubectl-csr_$version-$os-$arch.cdx.json" -version "$version"
  pack "$work" "$folder" "$out/$folder.tar.gz"
done
hack/release/krew.sh "$version" "$out" >"$out/csr.yaml"

say "images"
revision=$(git rev-parse HEAD)
GOFIPS140=off "$work/image" -root . -out "$work/plain" -version "$version" -revision "$revision" >&2
GOFIPS140=$fipsModule "$work/image" -root . -out "$work/fips" -version "$version-fips" -revision "$revision" >&2
for file in "$work"/plain/*; do cp "$file" "$out/$(basename "${file/$name/${name}_$version}")"; done
for file in "$work"/fips/*; do cp "$file" "$out/$(basename "${file/$name/$name-fips_$version}")"; done

say "chart"
cp -r charts/$name "$work/$name"
sed -i -e "s|^version: .*|version: ${version#v}|" -e "s|^appVersion: .*|appVersion: $version|" "$work/$name/Chart.yaml"
sed -i -e "s|^  repository: $name\$|  repository: $registry/$name|" "$work/$name/values.yaml"
digest=$(imageDigest "$out/${name}_$version.tar")
sed -i -e "s|^  digest: \"\"\$|  digest: $digest|" "$work/$name/values.yaml"
for line in "  repository: $registry/$name" "  digest: $digest"; do
  [ "$(grep -cxF "$line" "$work/$name/values.yaml")" = 1 ] || die "values.yaml has not exactly one line \"$line\""
done
pack "$work" "$name" "$out/$name-${version#v}.tgz"

(cd "$out" && sha256sum -- * >"$work/checksums.txt" && cp "$work/checksums.txt" .)
say "built $(wc -l <"$out/checksums.txt") files in $out"
