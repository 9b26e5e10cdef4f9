package manager

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestCostlySubjectsCostNothing has a user who may only create requests, and who requests subjects of 60,000
// attributes. They used to keep a manager busy for minutes. Another request is served meanwhile.
func TestCostlySubjectsCostNothing(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	manager := kit.StartManager(t, kit.ServiceAccountConfig(t))
	manager.Answers(t, manager.Probes, "/readyz", 200)
	kit.Grant(t, "stranger", kit.MayCreate)
	costly := kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:a", Organization: []string{csr.NodeGroup}, OrganizationalUnit: slices.Repeat([]string{"u"}, 60_000),
	}})

	before := manager.CPUSeconds(t)
	var all []*kit.Request
	for range 4 {
		all = append(all, kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Spec.Request = costly })))
	}
	for _, obj := range all {
		kit.HasEvent(t, obj, "RequestTooLarge", "spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)")
	}
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "good")), csr.Issued)
	time.Sleep(5 * time.Second) // time for another attempt
	if used := manager.CPUSeconds(t) - before; used > 5 {
		t.Errorf("four requests took %.1f CPU-seconds", used)
	}
	for _, obj := range all {
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending {
			t.Errorf("request is %s, want Pending", state)
		}
	}
	kit.Approve(t, kit.Reload(t, all[0]))
	if failed := kit.Reaches(t, all[0], csr.Failed).Status.Conditions[1]; failed.Reason != "RequestTooLarge" {
		t.Errorf("once approved it is Failed with %s, want RequestTooLarge", failed.Reason)
	}
}
