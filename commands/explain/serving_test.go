package explain

import (
	"bytes"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// servingOn is the flag for a configuration that approves serving certificates.
var servingOn = []string{"--config=testdata/serving.yaml"}

// ofNodeA turns the request into one of the kubelet of node a.
func ofNodeA(obj *request) {
	obj.Spec.Username, obj.Spec.Groups = "system:node:a", []string{"system:nodes"}
}

// nodeServing is the request of that kubelet.
func nodeServing() x509.CertificateRequest {
	return x509.CertificateRequest{Subject: nodeName(), DNSNames: []string{"a"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}
}

// servingScenarios have requests for serving certificates that are refused for any state of the node.
func servingScenarios(t testing.TB) map[string]scenario {
	one := func(template x509.CertificateRequest, changes ...func(*request)) scenario {
		template.Subject = nodeName()
		changes = append([]func(*request){forSigner(kubeletServing, signature, serverAuth), ofNodeA, asking(t, template)}, changes...)
		return scenario{obj: explainRequest(t, changes...), args: servingOn}
	}
	own := nodeServing()
	with := func(change func(*x509.CertificateRequest)) x509.CertificateRequest {
		template := own
		change(&template)
		return template
	}
	return map[string]scenario{
		"RequesterNotNode":   one(own, func(obj *request) { obj.Spec.Groups = []string{"system:authenticated"} }),
		"UsagesNotPermitted": one(own, forSigner(kubeletServing, signature, certificatesv1.UsageClientAuth)),
		"CommonNameMismatch": one(own, func(obj *request) { obj.Spec.Username = "system:node:b" }),
		"SANTypeNotPermitted": one(with(func(r *x509.CertificateRequest) {
			r.EmailAddresses, r.URIs = []string{"a@example.com"}, []*url.URL{{Scheme: "https", Host: "a"}}
		})),
		"UnexpectedContent": one(with(func(r *x509.CertificateRequest) { r.ExtraExtensions = servingRequest().ExtraExtensions })),
		"NameNotPermitted": one(with(func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"::ffff:10.0.0.1%, DNS:kubernetes.default.svc"}
		})),
		"SANMissing":  one(x509.CertificateRequest{}),
		"SANReserved": one(with(func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })),
	}
}

// explainedThere lists the reasons that need the real sources of the inventory. explainInventoryTest compares their
// explanation with the Event.
var explainedThere = map[[2]string]bool{
	{"Approver", "SANNotOwned"}:         true,
	{"Approver", "SANContested"}:        true,
	{"Approver", "NodeNotFound"}:        true,
	{"Approver", "AddressNotPublished"}: true,
	{"Approver", "NotExpected"}:         true,
	{"Approver", "NodeAlive"}:           true,
	{"Approver", "MachineBound"}:        true,
	{"Approver", "OutsideJoinWindow"}:   true,
	{"Approver", "RequestTooOld"}:       true,
}

// notExplained lists the reasons that only a running manager gives: explain does not know what the manager counts, or
// what it failed to store (it shows the Event). For a dry run, explain says "dry run".
var notExplained = map[string]bool{
	"RateLimited": true, "InventoryPending": true, "WouldApprove": true, "WouldDeny": true, "WouldWait": true, "WouldIgnore": true,
	"WouldIssue": true, "WouldFail": true, "WouldDelete": true, "LedgerUnavailable": true,
	"ClockSkewed": true, "CertificateMismatch": true, "NotStored": true, "SecondSigner": true,
	"InternalError":  true, // no known input causes this defect
	"ApprovedByHand": true, // explain shows the condition
}

const explainInventoryTest = "../../test/integration/explain_inventory_test.go"

// TestExplainedThere checks that each reason of explainedThere occurs in the integration test and in
// docs/reference/reasons.md.
func TestExplainedThere(t *testing.T) {
	source, err := os.ReadFile(explainInventoryTest)
	if err != nil {
		t.Fatal(err)
	}
	page := reasonsPage(t)
	for key := range explainedThere {
		if _, found := reasonTables[key[0]][key[1]]; !found || !bytes.Contains(source, []byte(`{"`+key[1]+`", `)) {
			t.Errorf("%s: a reason %t, and no row in %s", key, found, explainInventoryTest)
		}
	}
	for reason := range notExplained {
		if !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("%s is not in docs/reference/reasons.md", reason)
		}
	}
}
