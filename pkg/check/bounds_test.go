package check

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestGroupsOfTheRequesterAreBounded(t *testing.T) {
	t.Parallel()
	obj := certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:node:a",
	}}
	for range 1000 {
		obj.Spec.Groups = append(obj.Spec.Groups, strings.Repeat("g", 1000))
	}
	node := Node{
		Name:    "a",
		now:     time.Now(),
		Reader:  fake.NewClientBuilder().Build(),
		Approve: func(context.Context, *certificatesv1.CertificateSigningRequest) Opinion { return Opinion{} },
		Issue:   func(context.Context, *certificatesv1.CertificateSigningRequest) Opinion { return Opinion{} },
	}
	results := node.client(t.Context(), []certificatesv1.CertificateSigningRequest{obj}, OK)
	if evidence := results[0].Evidence; len(evidence) > 4096 || !strings.Contains(evidence, "and 992 more") {
		t.Errorf("%d bytes: %.200s", len(evidence), evidence)
	}
}

// TestConfiguredLimitsSayWhatIsRead has a request that only the configured limits refuse.
func TestConfiguredLimitsSayWhatIsRead(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	obj := requestWith(t, key)
	if !(Node{}).asksFor(obj, "system:node:a") {
		t.Error("the default limits refuse it")
	}
	if (Node{RequestLimits: csr.Limits{RequestBytes: 10}}).asksFor(obj, "system:node:a") {
		t.Error("ten bytes permit it")
	}
}
