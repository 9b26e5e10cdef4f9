package approver

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// These parts of the defects below have no test, because the code that could have them does not exist:
//
//	| # | part | why |
//	|---|---|---|
//	| 04 | a resolver that stalls | DNS is never used: the inventory has the facts about a node |
//	| 12 | encryption instead of a signature | only crypto/x509 signs and verifies |
//	| 18 | a controller that creates a request again | no role may create requests, and only requests that were read are written |
//	| 18 | a field selector with a typing error | no list has a field selector |
//	| 23 | PodCertificateRequests, their annotations and maxExpirationSeconds | requests of that kind are not served |
//	| 24 | a CA and a profile by annotation | both come only from the configuration |
//	| 27 | an annotation with the end of a certificate | the end is parsed from the certificate when it is loaded |
//	| 28 | a pass of the cleaner before its cache is filled | the cleaner makes no passes: it reconciles each request of the cache |

// defects lists defects of other approvers, signers and cleaners. Each has the tests that would fail if this program had
// the defect: "FOLDER TestName", or "FOLDER TestName: ROW" for a row of a table test.
var defects = []struct {
	name   string
	pinned []string
}{
	{"01 exact usages accept a subset", []string{"controllers/approver TestDefects: 01 a subset of the usages: digital signature"}},
	{"02 a review without subresource", []string{"controllers/approver TestDefects: 02 the right to create any request is not the right to have it approved", "controllers/approver TestNodeClientAsksAndSaysWhatKubernetesDoes"}},
	{"03 names are not checked", []string{"controllers/approver TestDefects: 03 another node's address", "test/integration TestServing: a name of the API server"}},
	{"04 a timeout causes a denial", []string{"controllers/approver TestDefectsNotYetIsNotNever: 04 a source that stalls", "test/integration TestAStalledSourceDelaysNoRenewal"}},
	{"05 names are compared by prefix", []string{"controllers/approver TestDefects: 05 a prefix of the name"}},
	{"06 a dry run writes", []string{"controllers/approver TestDefect06ADryRunWrites", "test/integration TestDryRun"}},
	{"07 a request over the limit is never retried", []string{"controllers/approver TestDefect07OverTheLimitIsForgotten"}},
	{"08 content is not checked", []string{"controllers/approver TestDefects: 08 a third usage", "controllers/approver TestDefects: 08 a client with a URI", "controllers/approver TestDefects: 08 another signer that got past the predicate"}},
	{"09 a request is denied before its facts exist", []string{"controllers/approver TestDefectsNotYetIsNotNever: 09 a Node with nothing", "test/integration TestServingWakes"}},
	{"10 names must be equal", []string{"controllers/approver TestDefects: 10 fewer names than the node has"}},
	{"11 a message names neither node nor requester", []string{"controllers/approver TestDefect11MessagesNameNobody"}},
	{"12 the signer checks nothing after an approval", []string{"controllers/signer TestDefects: 12 an approved request with another organization", "controllers/signer TestDefects: 12 a request with a forged signature", "controllers/signer TestDefect22ACertificateOutlivesItsCA"}},
	{"13 only the first name is checked", []string{"controllers/approver TestDefects: 13 an address and no name", "controllers/approver TestDefects: 13 a second name of another node", "controllers/approver TestDefects: 13 the common name of another node"}},
	{"14 ECDSA is refused", []string{"controllers/approver TestDefects: 14 an ECDSA key without key encipherment", "controllers/signer TestDefects: 14 an ECDSA key"}},
	{"15 a failing request delays others", []string{"test/integration TestOneThatFailsHoldsUpNoOther"}},
	{"16 the signer name is not checked", []string{"controllers/approver TestDefects: 16 a serving request for another signer", "controllers/signer TestDefects: 16 an unconfigured signer", "controllers TestForeignRequestsCostNothing"}},
	{"17 one violation hides another", []string{"controllers/approver TestServingTellsAllViolations"}},
	{"18 the signed request is not the requester's", []string{"controllers/signer TestReconcileSigns", "test/manifests TestRights"}},
	{"19 the wrong error is checked", []string{"controllers/approver TestDefect19AFaultApproves", "controllers/approver TestFaultsDecideNothing"}},
	{"20 an empty configuration approves everything", []string{"controllers/approver TestDefect20NothingConfiguredApproves", "controllers TestNothingConfiguredAsksNothing"}},
	{"21 a denial has no effect", []string{"controllers/approver TestReconcileDecides: malformed, denied", "test/integration TestDenialIsOptIn"}},
	{"22 a certificate outlives its CA", []string{"controllers/signer TestDefect22ACertificateOutlivesItsCA", "controllers/signer TestReconcileTellsALifetimeThatWasCut"}},
	{"23 an invalid chain, a CA that is never reloaded", []string{"controllers/signer TestDefect22ACertificateOutlivesItsCA", "test/integration TestFilesAreReloaded", "test/integration TestSecretGoes"}},
	{"24 the requester chooses the CA, workers share state", []string{"controllers/signer TestDefect24TheRequesterChooses"}},
	{"25 the requested lifetime is ignored", []string{"controllers/signer TestInput17Lifetimes", "test/parity TestParity"}},
	{"26 no maximum lifetime, an Event for each reconcile", []string{"controllers/signer TestInput17Lifetimes: 17 1e9", "controllers/approver TestARefusalIsToldOnce"}},
	{"27 a failure is reported as a success", []string{"controllers/signer TestDefect27AFaultIsToldAsSuccess", "pkg/keypair TestKeyPair: another one"}},
	{"28 a request is deleted by name only", []string{"test/integration TestCleanerSparesARequestOfTheSameName", "controllers/cleaner TestReconcileDeletesWhenDue"}},
	{"29 a request with unknown conditions is never deleted", []string{"controllers/cleaner TestReconcileDeletesWhenDue: unknown condition", "controllers/approver TestInputsThatAreCleaned"}},
	{"30 a bundle stops signing", []string{"controllers/signer TestDefect30ABundleStopsSigning", "pkg/keypair TestKeyPair: a bad one"}},
	{"31 half a key pair is not reported", []string{"pkg/config TestValidate: half a pair beside the Secret", "pkg/config TestAPairForEach"}},
	{"32 a request that can never be signed is retried forever", []string{"controllers/signer TestDefects: 32 an unknown usage", "controllers/signer TestReconcileWaitsForACA", "pkg/keypair TestKeyPair: expired while in use"}},
	{"33 a decision applies to another request with the same name", []string{"test/integration TestApprovalDoesNotPassToARequestOfTheSameName", "test/integration TestApproverWritesOnlyWhatItJudged"}},
}

// TestDefectsArePinned checks that the tests are there that the list names.
func TestDefectsArePinned(t *testing.T) {
	t.Parallel()
	folders := map[string]map[string][]string{}
	for i, defect := range defects {
		if number, _, _ := strings.Cut(defect.name, " "); number != fmt.Sprintf("%02d", i+1) || len(defect.pinned) == 0 {
			t.Errorf("%q has %d tests, and place %d", defect.name, len(defect.pinned), i+1)
		}
		for _, pin := range defect.pinned {
			where, row, _ := strings.Cut(pin, ": ")
			folder, test, _ := strings.Cut(where, " ")
			if folders[folder] == nil {
				folders[folder] = testsIn(t, folder)
			}
			texts, found := folders[folder][test]
			if !found {
				t.Errorf("%s: there is no %s in %s", defect.name, test, folder)
			} else if row != "" && !slices.Contains(texts, row) {
				t.Errorf("%s: there is no %q in %s of %s", defect.name, row, test, folder)
			}
		}
	}
	if len(defects) != 33 {
		t.Errorf("%d defects", len(defects))
	}
}

// TestInputsAreThere checks that each of the 25 inputs is a fixture.
func TestInputsAreThere(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, folder := range []string{"controllers/approver", "controllers/signer", "test/integration"} {
		for name, own := range testsIn(t, folder) {
			if strings.HasPrefix(name, "TestInput") || strings.HasSuffix(name, "Inputs") {
				texts = append(append(texts, own...), strings.TrimPrefix(name, "TestInput")+" ")
			}
		}
	}
	for number := 1; number <= 25; number++ {
		prefix := fmt.Sprintf("%02d", number)
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.HasPrefix(text, prefix) }) {
			t.Errorf("input %d is nowhere", number)
		}
	}
}

// testsIn returns the strings in each function of the test files of folder.
func testsIn(t *testing.T, folder string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d test files, error %v", folder, len(files), err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil {
				found[function.Name.Name] = stringsIn(function)
			}
		}
	}
	return found
}

func stringsIn(function *ast.FuncDecl) []string {
	texts := []string{}
	ast.Inspect(function, func(node ast.Node) bool {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}
