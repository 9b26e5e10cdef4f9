#!/usr/bin/env bash
# Changes one operator at a time in a package, with gremlins, and requires that its unit tests notice.
#
#   hack/mutation.sh PACKAGE FLOOR [FLAG…]
#
# It fails if the tests notice FLOOR percent of the mutants or less, and prints those that they miss. FLAG is a flag of "gremlins
# unleash", such as --dry-run or --exclude-files.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/go.env
package=$1 floor=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -modfile=hack/gremlins.mod -o "$work/gremlins" github.com/go-gremlins/gremlins/cmd/gremlins
hack/copy.sh "$work/tree" # without bin: gremlins copies the tree for each worker
cd "$work/tree"
go test -cover -run '^$' "./$package/..." >/dev/null # gremlins computes its timeout from the time of the tests, without the build

# The go command for gremlins. Go counts no coverage for the condition of a case (go-gremlins/gremlins#298), so each line counts as covered.
# "go test" ends with 1 if a mutant does not compile, which gremlins takes for noticed: 2 means not viable. A mutant may allocate without end.
mkdir "$work/bin"
cat >"$work/bin/go" <<END
#!/usr/bin/env bash
case "\$*" in
*-coverprofile*)
  '$(command -v go)' "\$@" || exit
  while [ "\$1" != -coverprofile ]; do shift; done
  sed -n 's/:[0-9].*//p' "\$2" | sort -u | sed 's/\$/:1.1,999999.1 1 1/' >>"\$2" ;;
test*)
  '$(command -v go)' build "\${@: -1}" || exit 2
  ulimit -v 6291456
  exec '$(command -v go)' "\$@" ;;
*) exec '$(command -v go)' "\$@" ;;
esac
END
chmod +x "$work/bin/go"

echo "unleash: {threshold: {efficacy: $floor}}" >"$work/gremlins.yaml" # gremlins ignores its flag --threshold-efficacy
# The operators that gremlins does not change by default. --invert-bitwise is missing: it also changes the & of an address.
PATH=$work/bin:$PATH "$work/gremlins" --config "$work/gremlins.yaml" unleash --output-statuses lct --timeout-coefficient 10 \
  --invert-logical --invert-loopctrl --invert-assignments --remove-self-assignments --invert-bwassign "$@" "./$package"
