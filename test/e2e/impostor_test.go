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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// testImpostor is the third part of step 10. A node gets a certificate for its own address, and none for the
// victim's, which it reports as its own.
func (c *cluster) testImpostor(t *testing.T, m, victim *machine) {
	c.restartKubelet(t, m, kubeletOptions{})
	c.until(t, time.Minute, "the API server talks to "+m.name, func(context.Context) (bool, error) {
		answer, err := c.health(m)
		return answer == "ok", err
	})
	c.wantOurs(t, m, c.served(t, m))
	claimed := c.claim(t, m, victim)
	c.waitsWith(t, claimed, "SANContested", "Node "+victim.name)
	time.Sleep(30 * time.Second) // the manager looks again, several times
	c.wantPending(t, claimed)
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

// claim configures the kubelet to report the victim's address as its own, as root on a node can. It returns the
// request that the kubelet then creates.
func (c *cluster) claim(t *testing.T, m, victim *machine) *certificatesv1.CertificateSigningRequest {
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
			req, err := csr.Parse(&requests[i])
			if err == nil && slices.ContainsFunc(req.Cert.IPAddresses, net.ParseIP(victim.address).Equal) {
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
