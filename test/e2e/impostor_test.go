//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// testImpostor is the third part of step 10. A node gets a certificate for its own address, and none for the
// victim's. It fails both with a plain request and when it reports the victim's address as its own.
func (c *cluster) testImpostor(t *testing.T, m, victim *machine) {
	c.restartKubelet(t, m, kubeletOptions{})
	c.until(t, time.Minute, "the API server talks to "+m.name, func(context.Context) (bool, error) {
		answer, err := c.health(m)
		return answer == "ok", err
	})
	c.wantOurs(t, m, c.served(t, m))
	asked := c.askFor(t, m, victim.address)
	c.waitsWith(t, asked, "SANNotOwned", victim.address)
	claimed := c.claim(t, m, victim, asked.Name)
	c.waitsWith(t, claimed, "SANContested", "Node "+victim.name)
	begin := time.Now()
	c.until(t, time.Minute, "the manager has looked again, several times", func(context.Context) (bool, error) {
		return time.Since(begin) > 30*time.Second, nil
	})
	for _, request := range []*certificatesv1.CertificateSigningRequest{asked, claimed} {
		c.wantPending(t, request)
	}
	if err := c.served(t, m).VerifyHostname(victim.address); err == nil {
		t.Errorf("%s has a certificate for %s", m.name, victim.address)
	}
	c.wantReachable(t, victim)
	// No pod must be scheduled here.
	if err := m.kubelet.kill(); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "node", m.name)
}

// holds reports whether a request is for that address.
func holds(obj *certificatesv1.CertificateSigningRequest, address string) bool {
	req, err := csr.Parse(obj)
	return err == nil && slices.ContainsFunc(req.Cert.IPAddresses, net.ParseIP(address).Equal)
}

// askFor creates a request for an address with the kubelet's own client certificate.
func (c *cluster) askFor(t *testing.T, m *machine, address string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	file, _ := m.current(t)
	config := rest.AnonymousClientConfig(c.config)
	config.CertData, config.KeyData = []byte(file), []byte(file)
	as, err := client.New(config, client.Options{Scheme: c.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "asked-by-" + m.name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: payload(t, m.name, net.ParseIP(address)), SignerName: certificatesv1.KubeletServingSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}
	if err := as.Create(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	return request
}

// claim configures the kubelet to report the victim's address as its own, as root on a node can. It returns the
// request that the kubelet then creates, which is not the one named asked.
func (c *cluster) claim(t *testing.T, m, victim *machine, asked string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	// The kubelet needs the address on the machine. No traffic must go there, so that only the request is tested.
	for _, line := range []string{"echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore", "ip address add " + victim.address + "/32 dev lo"} {
		if _, err := run(m.command("sh", "-c", line)); err != nil {
			t.Fatal(err)
		}
	}
	c.restartKubelet(t, m, kubeletOptions{Address: victim.address})
	c.until(t, time.Minute, "Node "+m.name+" reports the victim's address", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: m.name}, node)
		return slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: victim.address}), err
	})
	var claimed *certificatesv1.CertificateSigningRequest
	c.until(t, time.Minute, m.name+" asks for the victim's address", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsTo(ctx, certificatesv1.KubeletServingSignerName, m.name)
		for i := range requests {
			if requests[i].Name != asked && holds(&requests[i], victim.address) {
				claimed = &requests[i]
			}
		}
		return claimed != nil, err
	})
	return claimed
}

// waitsWith waits until an Event says why the request is not approved.
func (c *cluster) waitsWith(t *testing.T, request *certificatesv1.CertificateSigningRequest, reason, part string) {
	t.Helper()
	c.until(t, 20*time.Second, fmt.Sprintf("request %s waits with %s", request.Name, reason), func(ctx context.Context) (bool, error) {
		note, err := c.noteOn(ctx, request, reason)
		if err == nil && note != "" && !strings.Contains(note, part) {
			err = fmt.Errorf("the Event does not tell %q: %s", part, note)
		}
		return note != "", err
	})
	c.wantPending(t, request)
}

func (c *cluster) wantPending(t *testing.T, request *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	now, err := c.get(t.Context(), request.Name)
	if err != nil {
		t.Fatal(err)
	}
	if len(now.Status.Conditions) > 0 || issued(now) != nil {
		t.Errorf("request %s is not pending: %v", now.Name, now.Status.Conditions)
	}
}
