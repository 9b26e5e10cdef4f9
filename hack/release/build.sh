#!/usr/bin/env bash
# Builds everything that a release contains. The same commit, version, registry and Go give the same bytes.
#
#   hack/release/build.sh VERSION REGISTRY OUT
#
# REGISTRY is where the image and the chart will be published, such as ghcr.io/OWNER: it is the default repository in the chart.
# OUT gets, for each platform, an archive of the programs, and one of the manager with the FIPS 140-3 module of Go; the image
# with and without that module, and its SBOMs; the chart; checksums.txt.
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

# compile builds package $3 for linux on architecture $1 as file $2, with the flags of hack/image.
compile() {
  CGO_ENABLED=0 GOOS=linux GOARCH=$1 GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' GOWORK=off \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${4:-$version}" -o "$2" "$3"
}

# pack writes folder $2, which is in $1, to the archive $3, without its owner and age.
pack() {
  find "$1/$2" -type d -exec chmod 755 {} + -o -type f -perm -u+x -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
  tar -C "$1" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -9 -n >"$3"
}

say "licences of the linked modules"
hack/licenses.sh --save "$work/licenses"

for arch in amd64 arm64; do
  say "programs for linux/$arch"
  for variant in "" -fips; do
    folder=${name}${variant}_${version}_linux_$arch
    mkdir "$work/$folder"
    cp LICENSE "$work/$folder" && cp -r "$work/licenses" "$work/$folder/licenses"
    if [ -z "$variant" ]; then
      compile $arch "$work/$folder/$name" .
      compile $arch "$work/$folder/kubectl-csr" ./cmd/kubectl-csr
    else
      GOFIPS140=$fipsModule compile $arch "$work/$folder/$name" . "$version-fips"
    fi
    pack "$work" "$folder" "$out/$folder.tar.gz"
  done
done

say "images"
revision=$(git rev-parse HEAD)
(cd hack/image && go build -o "$work/image" .)
GOFIPS140=off "$work/image" -root . -out "$work/plain" -version "$version" -revision "$revision" >&2
GOFIPS140=$fipsModule "$work/image" -root . -out "$work/fips" -version "$version-fips" -revision "$revision" >&2
for arch in amd64 arm64; do
  "$work/image" -sbom "$work/${name}_${version}_linux_$arch/kubectl-csr" -out "$out/kubectl-csr_$version-linux-$arch.cdx.json" -version "$version"
done
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
