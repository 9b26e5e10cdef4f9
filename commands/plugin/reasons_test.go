package plugin

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/docs"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestReasonStep wants the next step of each row of the page, and none after a success.
func TestReasonStep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state        csr.State
		reason, want string
	}{
		{csr.Pending, "ShapeMismatch", "Correct the client."},
		{csr.Denied, "UsagesNotPermitted", "Request digital signature and server auth, with or without key encipherment."},
		{csr.Approved, "UsagesNotPermitted", "Request other usages, or extend `signing.signers[].usages`."},
		{csr.Failed, "KeyTooWeak", "Make a new request with an ECDSA P-256 key, or a longer RSA key."},
		{csr.Pending, "Malformed", "Delete the request."},
		{csr.Approved, "Malformed", "Delete the request."},
		{csr.Pending, "KeyTooWeak", ""},
		{csr.Approved, "ShapeMismatch", ""},
		{csr.Approved, "CALoaded", ""},
		{csr.Pending, "WouldDeny", "The manager is in a dry run"},
		{csr.Pending, "RightsMissing", ""},
		{csr.Pending, "", ""},
	} {
		if got := reasonStep(test.state, test.reason); !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s, %q: %q, want %q", test.state, test.reason, got, test.want)
		}
	}
	section, rows := "", 0
	for line := range strings.Lines(docs.Reasons) {
		if title, found := strings.CutPrefix(line, "## "); found {
			section = strings.TrimSpace(title)
		}
		if !strings.HasPrefix(line, "| `") || !slices.Contains([]string{"Approver", "Approver and signer", "Signer"}, section) {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 || nextSteps()[section+"/"+strings.Trim(cells[0], "`")] != cells[2] {
			t.Errorf("this row of section %s has not three cells, or is not found: %s", section, line)
			continue
		}
		for _, text := range cells[1:] {
			if strings.Count(text, ". ") > 1 || !strings.HasSuffix(text, ".") {
				t.Errorf("want one or two sentences: %q", text)
			}
		}
	}
	if rows < 40 {
		t.Errorf("only %d rows", rows)
	}
}

// camelCase matches a string literal that looks like a reason of two or more words.
var camelCase = regexp.MustCompile(`"((?:[A-Z]+[a-z]+){2,}|[A-Z]{2,}[a-z]+\w*)"`)

// noReasons lists literals in the code that look like a reason and are not one.
var noReasons = []string{
	"ControllerManagerConfiguration", "ServiceAccount", "ConfigMap", "NodeLookup", "WithRoot", "CheckRights",
	"NotSigned", "TrustProbe", // records of the audit log
	"DestroyRetiring", "DropCandidate", "MakeCandidate", "RestoreSigning", "SwapBack", "TakeCandidate", // steps of a rotation
	"NotAsked", "NotConfirmed", "NotProven", "NotPublished", // conditions of a SigningAuthority
}

// TestEveryReasonInTheCodeHasARow finds a reason in the controllers and public packages that docs/reference/reasons.md
// does not explain.
func TestEveryReasonInTheCodeHasARow(t *testing.T) {
	found := 0
	for _, folder := range []string{"controllers", "pkg"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for line := range strings.Lines(string(source)) {
				if strings.HasPrefix(strings.TrimSpace(line), "//") {
					continue
				}
				for _, match := range camelCase.FindAllStringSubmatch(line, -1) {
					if slices.Contains(noReasons, match[1]) {
						continue
					}
					if found++; !strings.Contains(docs.Reasons, "| `"+match[1]+"` |") {
						t.Errorf("%s: docs/reference/reasons.md has no row for %q; add one, or add it to noReasons if it is no reason", path, match[1])
					}
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 40 {
		t.Errorf("only %d reasons found in the code", found)
	}
}
