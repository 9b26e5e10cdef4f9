# Functions for the scripts in this folder, which source it from the top folder of the repository.
# shellcheck shell=bash disable=SC2034

. hack/go.env

name=csr-controller-manager

# The version of Go's cryptographic module (`go doc crypto/fips140`) in the programs with the suffix -fips: the one with a FIPS 140-3
# certificate.
fipsModule=v1.0.0

# The platforms of the kubectl plugin.
pluginPlatforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64)

# pluginProgram prints the name of the plugin's program for the operating system $1.
pluginProgram() { if [ "$1" = windows ]; then echo kubectl-csr.exe; else echo kubectl-csr; fi; }

say() { echo "release: $*" >&2; }

die() { say "$*"; exit 1; }

# checkVersion exits if $1 is not a semantic version (semver.org) with the prefix v. A tag of an image can't contain "+", so build
# metadata is refused. The suffix -fips belongs to the image with the FIPS 140-3 module.
checkVersion() {
  local number='(0|[1-9][0-9]*)'
  [[ $1 =~ ^v$number\.$number\.$number(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$ && $1 != *-fips ]] ||
    die "\"$1\" is not a semantic version such as v1.2.3 or v1.2.3-rc.1, or ends with -fips"
}

# buildTools builds the programs that hack/release.mod and hack/helm.mod pin, and puts them first in PATH. Scripts that the caller runs
# use the same programs.
buildTools() {
  [ -z "${RELEASE_TOOLS:-}" ] || return 0
  local tools=$PWD/bin/release-tools
  mkdir -p "$tools"
  CGO_ENABLED=0 go build -modfile=hack/release.mod -trimpath -ldflags '-s -w' -o "$tools/" \
    github.com/sigstore/cosign/v3/cmd/cosign github.com/google/go-containerregistry/cmd/crane
  go build -modfile=hack/helm.mod -o "$tools/" helm.sh/helm/v4/cmd/helm # with the flags that test/manifests uses
  export RELEASE_TOOLS=$tools PATH=$tools:$PATH
}

# isLocal reports whether registry $1 is on this machine. Only then it is used without TLS.
isLocal() { [[ $1 == localhost:* ]]; }

# identity prints the only identity that may sign: the release workflow of this repository, at the released tag.
identity() { echo "${GITHUB_SERVER_URL:?}/${GITHUB_REPOSITORY:?}/.github/workflows/release.yml@${GITHUB_REF:?}"; }

# builder prints the only identity that may attest a build: build.yml at the commit that release.yml names.
builder() {
  local called
  called=$(sed -nE 's|^ *uses: ([^ ]+/build\.yml@[0-9a-f]{40}) .*|\1|p' .github/workflows/release.yml)
  [[ $called == */build.yml@* ]] || die "release.yml does not call build.yml by a commit"
  echo "${GITHUB_SERVER_URL:?}/$called"
}

# check runs cosign, and prints what it says only if it fails: it warns about the missing transparency log of a key.
check() {
  local said
  said=$(cosign "$@" 2>&1) || { echo "$said" >&2; die "cosign $1 ${*: -1} failed"; }
}

issuer=https://token.actions.githubusercontent.com

# imageDigest prints the digest of the image in archive $1. It is the only entry of the layout's index.
imageDigest() {
  local digest
  digest=$(tar -xOf "$1" index.json | grep -oE '"digest": *"sha256:[0-9a-f]{64}"' | grep -oE 'sha256:[0-9a-f]{64}' || true)
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "$1: index.json has not exactly one digest"
  echo "$digest"
}

# isMissing reports whether text $1 is crane's error for a tag or a repository that the registry does not have. All other errors,
# such as a refused token or a registry that is down, say nothing about the tag.
isMissing() { [[ $1 =~ :\ (MANIFEST_UNKNOWN|NAME_UNKNOWN):\  || $1 =~ :\ unexpected\ status\ code\ 404\ Not\ Found ]]; }

# hasChart exits if the manifest in file $1, of reference $2, does not hold the chart in file $3.
hasChart() {
  local sum
  sum=$(sha256sum <"$3")
  grep -qF "\"sha256:${sum%% *}\"" "$1" || die "$2 holds another chart than $3"
}
