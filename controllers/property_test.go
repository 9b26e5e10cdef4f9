package controllers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
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
func counted(t *testing.T, dryRun bool, denial string) (Options, *calls) {
	t.Helper()
	options := optionsOf(t, func(c *config.Configuration) {
		c.Approval.Denial, c.Approval.KubeletServing.Enabled, c.Approval.NodeClient.Inventory = denial, true, "cluster-api"
		c.Approval.NodeClient.ClusterName = "lab"
		c.Signing.Signers = []config.Signer{
			{Name: "example.com/custom", CA: config.CA{Secret: "ns/custom"}, Usages: []string{"client auth"}},
			{Name: serving, CA: config.CA{Secret: "ns/serving"}},
		}
		if denial == "Permanent" {
			c.NodeBlockList = "kube-system/blocked"
		}
		if dryRun {
			c.DryRun = []string{"*"}
		}
	})
	made := &calls{events: events.NewFakeRecorder(100)}
	remote, err := client.New(&rest.Config{Host: "https://api.example.com", Transport: made}, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(noon)
	time, a, s := servertime.Of(clock), options.Approver, options.Signer
	a.Client, a.Live, a.Clock, a.ServerTime, a.BlockList = cached{remote, made}, remote, clock, time, options.BlockList
	s.Client, s.Live, s.Clock, s.ServerTime, s.BlockList = cached{remote, made}, remote, clock, time, options.BlockList
	a.Reporter, s.Reporter, a.Authorizer = report.New(made.events, clock), report.New(made.events, clock), authz.Func(made.review)
	return options, made
}

// TestForeignRequestsCostNothing checks that no request for an unconfigured signer causes an API call, whatever its
// content. Many of the names differ slightly from the name of a configured signer.
func TestForeignRequestsCostNothing(t *testing.T) {
	t.Parallel()
	names := []string{"", " ", "\x00", "kubernetes.io/legacy-unknown", "beta.eks.amazonaws.com/app-serving", clients}
	for _, name := range []string{kubelet, serving, "example.com/custom"} {
		names = append(names, name, strings.ToUpper(name), name+"s", name+" ", name+"/", name+"-a", name+"\x00", " "+name, "/"+name,
			name[1:], name[:len(name)-1], strings.Split(name, "/")[0])
	}
	for _, dryRun := range []bool{false, true} {
		for _, denial := range []string{"Never", "Permanent"} {
			options, made := counted(t, dryRun, denial)
			controllers := map[string]reconcile.TypedReconciler[fairqueue.Key]{"approver": options.Approver, "signer": options.Signer}
			ours, busy := map[string][]string{"signer": {"example.com/custom", serving}, "approver": {kubelet, serving}}, map[string]int{}
			for k, obj := range contents(t) {
				for i, name := range names {
					obj.Spec.SignerName, obj.UID = name, types.UID(fmt.Sprint(k, "-", i)) // each is told once
					for name, controller := range controllers {
						made.served = obj.DeepCopy()
						result, err := controller.Reconcile(t.Context(), fairqueue.Key{Name: obj.Name, UID: obj.UID})
						called := made.all()
						if slices.Contains(ours[name], obj.Spec.SignerName) {
							busy[name] += len(called)
						} else if len(called) > 0 || err != nil || result != (reconcile.Result{}) || !reflect.DeepEqual(obj, made.served) {
							t.Fatalf("dry run %t, denial %s: the %s makes %q of it, %+v, error %v: %s", dryRun, denial, name, called, result, err, obj)
						}
					}
				}
			}
			if busy["approver"] == 0 || busy["signer"] == 0 { // otherwise the test proves nothing
				t.Errorf("calls about requests of the own signers: %v", busy)
			}
		}
	}
}

// contents returns requests with every combination of a payload, a requester, usages and conditions.
func contents(t *testing.T) (all []*certificatesv1.CertificateSigningRequest) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	payload := func(template x509.CertificateRequest) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	node := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	payloads := [][]byte{
		nil, []byte("nonsense"), payload(x509.CertificateRequest{Subject: node}),
		payload(x509.CertificateRequest{Subject: node, DNSNames: []string{"a"}, IPAddresses: []net.IP{{10, 0, 0, 1}}}),
		payload(x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}}),
	}
	for _, states := range [][]certificatesv1.RequestConditionType{nil, {"Approved"}, {"Approved", "Failed"}, {"Denied"}, {"Vetted"}} {
		for _, bytes := range payloads {
			for _, user := range []string{"system:node:a", "system:bootstrap:abcdef", "admin"} {
				for _, usage := range []certificatesv1.KeyUsage{"client auth", "server auth"} {
					obj := newRequest("a", "", noon.Add(-time.Minute), states...)
					obj.ResourceVersion, obj.Spec.Request, obj.Spec.Username = "1", bytes, user
					obj.Spec.Groups = []string{"system:nodes", "system:bootstrappers", "system:masters"}
					obj.Spec.Usages = []certificatesv1.KeyUsage{"digital signature", usage}
					all = append(all, obj)
				}
			}
		}
	}
	return all
}
