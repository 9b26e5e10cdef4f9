package controllers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// calls records every HTTP request, review and Event that would go to the API server.
type calls struct {
	made   []string
	served *certificatesv1.CertificateSigningRequest
	events *events.FakeRecorder
}

// RoundTrip records a request to the API server.
func (c *calls) RoundTrip(request *http.Request) (*http.Response, error) {
	c.made = append(c.made, request.Method+" "+request.URL.Path)
	return nil, fmt.Errorf("no API server")
}

func (c *calls) review(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
	c.made = append(c.made, "review")
	return true, nil
}

func (c *calls) all() []string {
	made := c.made
	for len(c.events.Events) > 0 {
		made = append(made, <-c.events.Events)
	}
	c.made = nil
	return made
}

// cached reads the request from memory, like a cache. Every other method is a call.
type cached struct {
	client.Client
	calls *calls
}

func (c cached) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	*obj.(*certificatesv1.CertificateSigningRequest) = *c.calls.served
	return nil
}

// counted returns an approver and a signer, and records their calls. Everything that needs the API server is enabled.
func counted(t *testing.T, dryRun bool, denial string) (*Options, *calls) {
	t.Helper()
	options, err := FromConfiguration(configured(func(c *config.Configuration) {
		c.Approval.Denial, c.Approval.KubeletServing.Enabled, c.Approval.NodeClient.Inventory = denial, true, "cluster-api"
		c.Approval.NodeClient.ClusterName = "lab"
		c.Signing.Signers = []config.Signer{
			{Name: "example.com/custom", CA: config.CA{Secret: "ns/custom"}, Usages: []string{"client auth"}},
			{Name: "kubernetes.io/kubelet-serving", CA: config.CA{Secret: "ns/serving"}},
		}
		if denial == "Permanent" {
			c.NodeBlockList = "kube-system/blocked"
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	options.Approver.BlockList, options.Signer.BlockList = options.BlockList, options.BlockList
	options.Approver.DryRun, options.Signer.DryRun = dryRun, dryRun
	made := &calls{events: events.NewFakeRecorder(100)}
	remote, err := client.New(&rest.Config{Host: "https://api.example.com", Transport: made}, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	reporter := report.New(made.events, clock)
	options.Approver.Client, options.Approver.Clock, options.Approver.Reporter, options.Approver.Authorizer = cached{remote, made}, clock, reporter, authz.Func(made.review)
	options.Approver.Live = remote
	options.Approver.ServerTime, options.Signer.ServerTime = servertime.Of(clock), servertime.Of(clock)
	options.Signer.Client, options.Signer.Clock, options.Signer.Reporter, options.Signer.Live = cached{remote, made}, clock, reporter, remote
	return &options, made
}

// TestForeignRequestsCostNothing checks that no request for an unconfigured signer causes an API call, whatever its
// content.
func TestForeignRequestsCostNothing(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := newGenerator(t, seed)
	for _, dryRun := range []bool{false, true} {
		for _, denial := range []string{"Never", "Permanent"} {
			options, made := counted(t, dryRun, denial)
			controllers := map[string]reconcile.TypedReconciler[fairqueue.Key]{"approver": options.Approver, "signer": options.Signer}
			ours := map[string][]string{"signer": slices.Collect(maps.Keys(options.Signer.Signers))}
			for _, rule := range options.Approver.Rules {
				ours["approver"] = append(ours["approver"], rule.SignerName)
			}
			foreign, busy := 0, map[string]int{}
			for range 500 {
				made.served = random.request()
				before := made.served.DeepCopy()
				for name, controller := range controllers {
					result, err := controller.Reconcile(t.Context(), fairqueue.Key{Name: before.Name, UID: before.UID})
					called := made.all()
					if slices.Contains(ours[name], before.Spec.SignerName) {
						busy[name] += len(called)
						continue
					}
					foreign++
					if len(called) > 0 || err != nil || result != (reconcile.Result{}) || before.String() != made.served.String() {
						t.Fatalf("dry run %t, denial %s: the %s makes %q of it, %+v, error %v: %s", dryRun, denial, name, called, result, err, before)
					}
				}
			}
			if foreign < 400 || busy["approver"] == 0 || busy["signer"] == 0 { // otherwise the test proves nothing
				t.Errorf("%d foreign requests; calls about others %v", foreign, busy)
			}
		}
	}
}

// generator makes random requests. Meaningful values are more frequent than by chance.
type generator struct {
	*rand.Rand
	payloads [][]byte
}

func newGenerator(t *testing.T, seed uint64) *generator {
	t.Helper()
	r := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), payloads: [][]byte{nil, []byte("nonsense")}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, template := range []x509.CertificateRequest{
		{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}},
		{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, DNSNames: []string{"a"}, IPAddresses: []net.IP{{10, 0, 0, 1}}},
		{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}},
	} {
		der, err := x509.CreateCertificateRequest(cryptorand.Reader, &template, key)
		if err != nil {
			t.Fatal(err)
		}
		r.payloads = append(r.payloads, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	return r
}

func (r *generator) text() string {
	const letters = "aZ09:-./ *\x00é名"
	runes := []rune(letters)
	var text strings.Builder
	for range r.IntN(30) {
		text.WriteRune(runes[r.IntN(len(runes))])
	}
	return text.String()
}

func (r *generator) one(of ...string) string {
	if r.IntN(4) == 0 {
		return r.text()
	}
	return of[r.IntN(len(of))]
}

func (r *generator) some(of ...string) []string {
	var all []string
	for range r.IntN(4) {
		all = append(all, r.one(of...))
	}
	return all
}

// signerName often returns a name that differs slightly from a configured name.
func (r *generator) signerName() string {
	name := r.one("kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client",
		"kubernetes.io/legacy-unknown", "example.com/custom", "beta.eks.amazonaws.com/app-serving", "")
	switch r.IntN(6) {
	case 0:
		return strings.ToUpper(name)
	case 1:
		return name + r.one("s", " ", "/", "-a", "\x00")
	case 2:
		return r.one(" ", "x", "/") + name
	case 3:
		return name[:r.IntN(len(name)+1)]
	}
	return name
}

func (r *generator) request() *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.text(), UID: types.UID(r.text()), ResourceVersion: "1", Annotations: map[string]string{r.text(): r.text()},
			CreationTimestamp: metav1.NewTime(time.Date(2026, time.March, 1, 11, 30+r.IntN(60), 0, 0, time.UTC)),
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: r.signerName(), Request: r.payloads[r.IntN(len(r.payloads))],
			Username: r.one("system:node:a", "system:bootstrap:abcdef", "admin"), UID: r.text(),
			Groups: r.some("system:nodes", "system:bootstrappers", "system:masters"),
			Extra:  map[string]certificatesv1.ExtraValue{r.text(): {r.text()}},
		},
	}
	for _, usage := range r.some("digital signature", "client auth", "server auth", "key encipherment") {
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.KeyUsage(usage))
	}
	if r.IntN(2) == 0 {
		seconds := r.Int32()
		obj.Spec.ExpirationSeconds = &seconds
	}
	for _, kind := range r.some("Approved", "Approved", "Denied", "Failed", "Vetted") {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.RequestConditionType(kind), Status: corev1.ConditionStatus(r.one("True", "False", "")),
			LastUpdateTime: obj.CreationTimestamp,
		})
	}
	if r.IntN(5) == 0 {
		obj.Status.Certificate = []byte(r.text())
	}
	return obj
}
