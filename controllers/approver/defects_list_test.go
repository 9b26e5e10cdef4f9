package approver

import (
	"fmt"
	"os"
	"path/filepath"
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
// the defect: "FOLDER TestName", or "FOLDER TestName: ROW" for a row of a table test whose name begins with that.
var defects = []struct {
	name   string
	pinned []string
}{
	{"01 exact usages accept a subset", []string{"controllers/approver TestInputs: 11 usages for serving: "}},
	{"02 a review without subresource", []string{"controllers/approver TestNodeClient: a bootstrapper with the other right"}},
	{"03 names are not checked", []string{"controllers/approver TestInputs: 04 another node's address", "test/integration TestServing: a name of the API server"}},
	{"04 a timeout causes a denial", []string{"controllers/approver TestServingRefuses: the lookup fails", "test/integration TestAStalledSourceDelaysNoRenewal"}},
	{"05 names are compared by prefix", []string{"controllers/approver TestServingRefuses: similar to its own: "}},
	{"06 a dry run writes", []string{"controllers/approver TestDryRunReports", "test/integration TestDryRun"}},
	{"07 a request over the limit is never retried", []string{"controllers/approver TestLimit"}},
	{"08 content is not checked", []string{"controllers/approver TestInputs: 11 usages for serving: ", "controllers/approver TestNodeClient: a URI", "controllers/approver TestInputs: 15 client for signer "}},
	{"09 a request is denied before its facts exist", []string{"controllers/approver TestServingRefuses: no addresses yet", "test/integration TestServingWakes"}},
	{"10 names must be equal", []string{"controllers/approver TestInputs: 06 address only"}},
	{"11 a message names neither node nor requester", []string{"controllers/approver TestInputs: 01 serving for a node by another", "controllers/approver TestInputs: 05 no such node"}},
	{"12 the signer checks nothing after an approval", []string{"controllers/signer TestDefects: 12 an approved request with another organization", "controllers/signer TestDefects: 12 a request with a forged signature", "controllers/signer TestDefect22ACertificateOutlivesItsCA"}},
	{"13 only the first name is checked", []string{"controllers/approver TestInputs: 06 address only", "controllers/approver TestInputs: 04 another node's name"}},
	{"14 ECDSA is refused", []string{"controllers/approver TestInputs: 10 without key encipherment", "controllers/signer TestDefects: 14 an ECDSA key"}},
	{"15 a failing request delays others", []string{"test/integration TestOneThatFailsHoldsUpNoOther"}},
	{"16 the signer name is not checked", []string{"controllers/approver TestInputs: 15 serving for signer ", "controllers/signer TestDefects: 16 an unconfigured signer", "controllers TestForeignRequestsCostNothing"}},
	{"17 one violation hides another", []string{"controllers/approver TestServingRefuses: all violations are told"}},
	{"18 the signed request is not the requester's", []string{"controllers/signer TestReconcileSigns", "test/manifests TestRights"}},
	{"19 the wrong error is checked", []string{"controllers/approver TestDefect19AFaultApproves", "controllers/approver TestFaultsDecideNothing"}},
	{"20 an empty configuration approves everything", []string{"controllers/approver TestNodeClient: no rule", "controllers TestNothingConfiguredAsksNothing"}},
	{"21 a denial has no effect", []string{"controllers/approver TestNodeClient: malformed", "test/integration TestDenialIsOptIn"}},
	{"22 a certificate outlives its CA", []string{"controllers/signer TestDefect22ACertificateOutlivesItsCA", "controllers/signer TestReconcileTellsALifetimeThatWasCut"}},
	{"23 an invalid chain, a CA that is never reloaded", []string{"controllers/signer TestDefect22ACertificateOutlivesItsCA", "test/integration TestFilesAreReloaded", "test/integration TestSecretGoes"}},
	{"24 the requester chooses the CA, workers share state", []string{"controllers/signer TestDefect24TheRequesterChooses"}},
	{"25 the requested lifetime is ignored", []string{"controllers/signer TestInput17Lifetimes", "test/parity TestParity"}},
	{"26 no maximum lifetime, an Event for each reconcile", []string{"controllers/signer TestInput17Lifetimes: 17 1e9", "controllers/approver TestPauseDoubles"}},
	{"27 a failure is reported as a success", []string{"controllers/signer TestDefect27AFaultIsToldAsSuccess", "pkg/keypair TestKeyPair: another one"}},
	{"28 a request is deleted by name only", []string{"test/integration TestCleanerSparesARequestOfTheSameName", "controllers/cleaner TestReconcileDeletesWhenDue"}},
	{"29 a request with unknown conditions is never deleted", []string{"controllers/cleaner TestReconcileDeletesWhenDue: unknown condition"}},
	{"30 a bundle stops signing", []string{"controllers/signer TestDefect30ABundleStopsSigning", "pkg/keypair TestKeyPair: a bad one"}},
	{"31 half a key pair is not reported", []string{"pkg/config TestValidate: half a pair beside the Secret", "pkg/config TestAPairForEach"}},
	{"32 a request that can never be signed is retried forever", []string{"controllers/signer TestDefects: 32 an unknown usage", "controllers/signer TestReconcileWaitsForACA", "pkg/keypair TestKeyPair: expired while in use"}},
	{"33 a decision applies to another request with the same name", []string{"test/integration TestApprovalDoesNotPassToARequestOfTheSameName", "test/integration TestApproverWritesOnlyWhatItJudged"}},
}

// TestDefectsArePinned checks that the tests are there that the list names.
func TestDefectsArePinned(t *testing.T) {
	t.Parallel()
	for i, defect := range defects {
		if number, _, _ := strings.Cut(defect.name, " "); number != fmt.Sprintf("%02d", i+1) || len(defect.pinned) == 0 {
			t.Errorf("%q has %d tests, and place %d", defect.name, len(defect.pinned), i+1)
		}
		for _, pin := range defect.pinned {
			where, row, _ := strings.Cut(pin, ": ")
			folder, test, _ := strings.Cut(where, " ")
			text := testsIn(t, folder+"/*_test.go")
			if !strings.Contains(text, "func "+test+"(") || row != "" && !strings.Contains(text, `"`+row) {
				t.Errorf("%s: there is no %s", defect.name, pin)
			}
		}
	}
	if len(defects) != 33 {
		t.Errorf("%d defects", len(defects))
	}
}

// TestInputsAreThere checks that each of the 25 inputs is a row of a test, or has a test of its own.
func TestInputsAreThere(t *testing.T) {
	t.Parallel()
	const own, ownFirst = "controllers/approver/inputs_test.go", "controllers/approver/bootstrap_test.go"
	text := testsIn(t, own, ownFirst, "controllers/signer/*_test.go", "test/integration/*_test.go")
	for number := 1; number <= 25; number++ {
		row, test := fmt.Sprintf("\"%02d ", number), fmt.Sprintf("func TestInput%02d", number)
		if number != 18 && !strings.Contains(text, row) && !strings.Contains(text, test) { // 18 is the TestOrder of internal/fairqueue
			t.Errorf("input %d is nowhere", number)
		}
	}
}

// testsIn returns the text of test files.
func testsIn(t *testing.T, patterns ...string) (text string) {
	t.Helper()
	for _, pattern := range patterns {
		files := must(filepath.Glob(filepath.Join("../..", filepath.FromSlash(pattern))))
		if len(files) == 0 {
			t.Fatalf("there is no %s", pattern)
		}
		for _, name := range files {
			text += string(must(os.ReadFile(name)))
		}
	}
	return text
}
