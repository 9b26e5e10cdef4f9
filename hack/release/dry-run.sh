#!/usr/bin/env bash
# Runs every step of a release on this machine: a registry on localhost takes the place of the public one, and two new keys take the places
# of keyless signing and of the builder's attestation.
#
#   hack/release/dry-run.sh [VERSION]
#
# It builds HEAD twice, in two folders and with two umasks, and requires identical files. Both builds share Go's build cache, so they
# compare only linking and packing. FRESH=1 gives the second build an empty cache, which makes it slow.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/release/lib.sh
version=${1:-v0.0.0-dry.run}
out=$PWD/bin/release
work=$(mktemp -d)
registry_pid=
cleanup() {
  [ -z "$registry_pid" ] || { kill "$registry_pid" 2>/dev/null || true; wait "$registry_pid" 2>/dev/null || true; }
  chmod -R u+w "$work" && rm -rf "$work"
}
trap cleanup EXIT
checkVersion "$version"
unset "${!GITHUB_@}" # so that no identity of a workflow is used
buildTools
(cd hack && go mod verify -modfile=release.mod >/dev/null) # make verify checks the other modules

crane registry serve --address localhost:0 2>"$work/registry.log" &
registry_pid=$!
for ((i = 0; i < 100; i++)); do
  port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry.log" 2>/dev/null || true)
  [ -z "$port" ] || break
  kill -0 "$registry_pid" 2>/dev/null || { cat "$work/registry.log" >&2; die "the registry stopped"; }
  sleep 0.1
done
[ -n "$port" ] || die "the registry did not start within 10 s"
registry=localhost:$port

hack/release/notes.sh "$version" "$(git rev-parse HEAD)" >"$work/notes.md"

say "first build"
rm -rf "$out"
hack/release/build.sh "$version" "$registry" "$out"
say "second build"
git clone --quiet --no-local . "$work/copy"
(
  umask 077
  [ -z "${FRESH:-}" ] || export GOCACHE=$work/cache
  "$work/copy/hack/release/build.sh" "$version" "$registry" "$work/second"
)
diff -r "$out" "$work/second" >&2 || die "two builds of the same commit differ"
say "both builds are identical"

COSIGN_PASSWORD=$(head -c 32 /dev/urandom | sha256sum | cut -d' ' -f1)
export COSIGN_PASSWORD
for key in key builder other; do cosign generate-key-pair --output-key-prefix "$work/$key" 2>"$work/log"; done
export COSIGN_KEY=$work/key.key COSIGN_PUBLIC_KEY=$work/key.pub BUILDER_PUBLIC_KEY=$work/builder.pub
echo '{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json"}' >"$work/services.json"

# attest writes the provenance of folder $1 with the private key $2, as the builder's workflow does with GitHub's action. It is an in-toto
# statement (in-toto.io/Statement/v1) with the fields that SLSA requires (slsa.dev/spec/v1.0/provenance).
attest() {
  local image digest subjects
  (cd "$1" && sha256sum -- *) >"$work/subjects.txt"
  for image in "$name" "$name-fips"; do
    digest=$(imageDigest "$1/${image}_$version.tar")
    echo "${digest#sha256:}  $image" >>"$work/subjects.txt"
  done
  subjects=$(sed -E 's/^([0-9a-f]{64}) [ *](.+)$/{"name":"\2","digest":{"sha256":"\1"}}/' "$work/subjects.txt" | paste -sd,)
  printf '{"_type":"https://in-toto.io/Statement/v1","subject":[%s],"predicateType":"https://slsa.dev/provenance/v1","predicate":{%s,%s}}' \
    "$subjects" '"buildDefinition":{"buildType":"dry run","externalParameters":{}}' '"runDetails":{"builder":{"id":"dry run"}}' >"$work/statement.json"
  check attest-blob --yes --key "$2" --signing-config "$work/services.json" --statement "$work/statement.json" \
    --bundle "$1/provenance.sigstore.json"
}
attest "$out" "$work/builder.key"

# refused runs a step that must fail, and requires that it prints the text $2. $1 names the reason.
refused() { # REASON TEXT COMMAND…
  local reason=$1 text=$2
  shift 2
  if "$@" >"$work/refused.log" 2>&1; then die "accepted: $reason"; fi
  grep -F -- "$text" "$work/refused.log" >"$work/reason" || { cat "$work/refused.log" >&2; die "refused for another reason than \"$text\": $reason"; }
  say "refused, as it must be: $reason ($(head -n 1 "$work/reason"))"
}
image=$registry/csr-controller-manager chart=$registry/charts/csr-controller-manager:${version#v}

hack/release/verify-build.sh "$version" "$out"
refused "a registry that does not answer" "nothing was pushed" hack/release/publish.sh "$version" localhost:1 "$out"
hack/release/publish.sh "$version" "$registry" "$out"
cp "$out/references.txt" "$work/first.txt"
hack/release/publish.sh "$version" "$registry" "$out" # a second attempt after a failure finds the same digests
cmp "$work/first.txt" "$out/references.txt"

digest() { sed -n "$1s/.*@//p" "$out/references.txt"; }
crane copy "$image@$(digest 2)" "$image:$version" 2>"$work/log"
refused "a tag with another image" "exists with digest" hack/release/publish.sh "$version" "$registry" "$out"
crane copy "$image@$(digest 1)" "$image:$version" 2>"$work/log"
crane copy "$image@$(digest 1)" "$chart" 2>"$work/log"
refused "a tag with another chart" "holds another chart" hack/release/publish.sh "$version" "$registry" "$out"
swapped=${chart%:*}@$(crane digest "$chart")
crane copy "${chart%:*}@$(digest 3)" "$chart" 2>"$work/log"

hack/release/sign.sh "$version" "$out"
hack/release/verify.sh "$version" "$registry" "$out"

# The commands that SECURITY.md tells users to run, with keys in place of the identities.
{
  builder=(--key "$BUILDER_PUBLIC_KEY" --insecure-ignore-tlog) identity=(--key "$COSIGN_PUBLIC_KEY" --insecure-ignore-tlog)
  declare -p version builder identity
  awk '/^## /{inside = $0 == "## Verify a release"} !inside{next} /^```/{block += /sh$/; code = /sh$/; next} code && block > 1' SECURITY.md
} >"$work/users.sh"
for command in verify-blob-attestation "cosign verify "; do
  grep -q "$command" "$work/users.sh" || die "SECURITY.md has no $command"
done
# users runs the commands in folder $1 as they are pasted: without options of the shell.
users() (cd "$1" && bash "$work/users.sh")
(cd "$out" && bash -euo pipefail "$work/users.sh" >"$work/log" 2>&1) || { cat "$work/log" >&2; die "the commands in SECURITY.md fail"; }
[ "$(tail -n 1 "$work/log")" = verified ] || die "the commands in SECURITY.md do not end with the line \"verified\""
say "the commands in SECURITY.md succeed"

# The verification must fail where it has to, or it proves nothing.
verify() { hack/release/verify.sh "$version" "$registry" "$1"; }
signFile() {
  check sign-blob --yes --key "$COSIGN_KEY" --signing-config "$work/services.json" --bundle "$1.sigstore.json" "$1"
}
# changed makes a copy of the release with another references.txt, from standard input, and signs it with the right key.
changed() {
  rm -rf "$work/changed" && cp -r "$out" "$work/changed"
  cat >"$work/changed/references.txt"
  signFile "$work/changed/references.txt"
}
COSIGN_PUBLIC_KEY=$work/other.pub refused "a signature of another key" "verify-blob $out/checksums.txt failed" verify "$out"
cp -r "$out" "$work/changed"
echo >>"$work/changed/csr-controller-manager-${version#v}.tgz"
refused "a changed file" ": FAILED" verify "$work/changed"
(cd "$work/changed" && awk '{print $2}' checksums.txt | xargs sha256sum >new && mv new checksums.txt)
refused "a changed file with its checksum" "verify-blob $work/changed/checksums.txt failed" verify "$work/changed"
refused "a changed file with its checksum, by SECURITY.md" "in statement" users "$work/changed"
signFile "$work/changed/checksums.txt"
refused "a changed file with its checksum, signed" "verify-blob-attestation $work/changed/checksums.txt failed" verify "$work/changed"
rm -rf "$work/changed" && cp -r "$out" "$work/changed"
attest "$work/changed" "$COSIGN_KEY"
refused "provenance that is not the builder's" "verify-blob-attestation $work/changed/checksums.txt failed" verify "$work/changed"
rm -rf "$work/changed" && cp -r "$out" "$work/changed"
sed -i 2d "$work/changed/references.txt"
refused "references.txt without a line" "verify-blob $work/changed/references.txt failed" verify "$work/changed"
changed < <(sed 2d "$out/references.txt")
refused "references.txt without a line, signed" "has 2 lines, not 3" verify "$work/changed"
changed < <(sed "1s/@.*/@$(digest 2)/" "$out/references.txt")
refused "another image" "references.txt, line 1" verify "$work/changed"
changed < <(sed "3s|.*|$swapped|" "$out/references.txt")
refused "another chart" "holds another chart" verify "$work/changed"
hack/release/publish.sh "$version" "$registry" "$out" # nothing that was refused has moved a tag

cp -r "$out" "$work/unsigned"
hack/release/publish.sh "$version" "$registry/unsigned" "$work/unsigned"
signFile "$work/unsigned/references.txt"
refused "an unsigned image" "cosign verify $registry/unsigned/csr-controller-manager@$(digest 1) failed" \
  hack/release/verify.sh "$version" "$registry/unsigned" "$work/unsigned"
changed < <(sed -n 1p "$work/unsigned/references.txt" && sed 1d "$out/references.txt")
refused "an unsigned image before a signed one, by SECURITY.md" "no signatures found" users "$work/changed"

say "pull what a user pulls"
helm pull "oci://${chart%:*}" --version "${version#v}" --plain-http --destination "$work" >/dev/null
cmp "$work/csr-controller-manager-${version#v}.tgz" "$out/csr-controller-manager-${version#v}.tgz"
helm template csr "$work/csr-controller-manager-${version#v}.tgz" >"$work/manifests.yaml"
grep -xE ' *image: "?'"$image@$(digest 1)"'"?' "$work/manifests.yaml" >&2
crane export --platform "linux/$(go env GOARCH)" "$image:$version-fips" "$work/image.tar"
mkdir "$work/image" && tar -xf "$work/image.tar" -C "$work/image"
"$work/image/csr-controller-manager" --version | grep -xF "csr-controller-manager $version-fips"
go version -m "$work/image/csr-controller-manager" | grep -F fips140=on

# Krew installs the plugin of each platform from its archive, and refuses another archive. No other script needs Krew.
go build -modfile=hack/krew.mod -o "$work/bin/" sigs.k8s.io/krew/cmd/krew
install() { # PLATFORM ARCHIVE
  KREW_ROOT=$work/krew/$1 KREW_OS=${1%/*} KREW_ARCH=${1#*/} KREW_NO_UPGRADE_CHECK=1 \
    "$work/bin/krew" install --manifest="$out/csr.yaml" --archive="$out/kubectl-csr_${version}_${2/\//_}.tar.gz"
}
refused "the plugin for another platform" "checksum does not match" install linux/amd64 linux/arm64
for platform in "${pluginPlatforms[@]}"; do
  install "$platform" "$platform" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "Krew does not install the plugin for $platform"; }
  [ -x "$work/krew/$platform/bin/$(pluginProgram "${platform%/*}")" ] || die "Krew installed no program for $platform"
done
"$work/krew/linux/$(go env GOARCH)/bin/kubectl-csr" --version | grep -F "$version"
say "Krew installs the plugin on ${pluginPlatforms[*]}"
say "dry run of $version is complete: $out"
