package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const nodeName = "node-1"

// join runs the kubelet's bootstrap, from the token to the Node.
func (d *demo) join(ctx context.Context) error {
	dir, err := d.dir(nodeName)
	if err != nil {
		return err
	}
	d.node = &kubelet.Node{Name: nodeName, Dir: dir, Bootstrap: d.bootstrap}
	pending, err := d.node.Request(ctx)
	if err != nil {
		return err
	}
	d.requests = append(d.requests, expected{pending.Name, "Approved,Issued"})
	d.say("%s asked for %s's client certificate: %s", tokenUser, nodeName, pending.Name)
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.cert, err = pending.Wait(short)
	obj, getErr := d.request(ctx, pending.Name)
	if err != nil || getErr != nil {
		return errors.Join(err, getErr, stateOf(obj))
	}
	if err := checkOutcomes(obj, byBootstrapper); err != nil {
		return err
	}
	d.say("approved: %s", byBootstrapper.message)
	d.say("signed: %s, until %s", d.cert.Leaf.Subject, d.cert.Leaf.NotAfter.Format(time.DateOnly))
	if err := d.node.CheckIdentity(ctx, d.cert); err != nil {
		return err
	}
	registered, err := d.node.Register(ctx, d.cert)
	if err != nil {
		return err
	}
	d.say("with it, the API server knows the caller as %s, who has registered Node %s", d.node.User(), registered.Name)
	return nil
}

// askServing starts client-go's certificate manager for the serving certificate and leaves it waiting.
func (d *demo) askServing(ctx context.Context) error {
	var err error
	d.serving, err = d.node.Serving(ctx, d.cert,
		kubelet.Addresses{DNS: []string{nodeName}, IP: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return err
	}
	d.serving.Start()
	err = until(ctx, "the node has asked", func(ctx context.Context) (bool, error) {
		d.asked, err = d.only(ctx, d.node.User(), certificatesv1.KubeletServingSignerName)
		return d.asked != nil, err
	})
	if err != nil {
		return err
	}
	d.requests = append(d.requests, expected{d.asked.Name, "Approved,Issued"})
	d.say("%s asked for a serving certificate for %s and 127.0.0.1: %s; it waits", d.node.User(), nodeName, d.asked.Name)
	return checkPending(d.asked)
}

// renew restarts the node with a certificate that is about to expire. client-go's certificate manager does the rest.
func (d *demo) renew(ctx context.Context) error {
	old, err := d.age(d.cert)
	if err != nil {
		return err
	}
	rotation, err := d.node.Rotation(ctx)
	if err != nil {
		return err
	}
	d.say("%s restarts with a certificate that expires in %s", nodeName, time.Until(old.Leaf.NotAfter).Round(time.Second))
	rotation.Start()
	defer rotation.Stop()
	var renewed *tls.Certificate
	err = until(ctx, "the certificate is renewed", func(context.Context) (bool, error) {
		renewed = rotation.Current()
		return renewed != nil && renewed.Leaf.SerialNumber.Cmp(old.Leaf.SerialNumber) != 0, nil
	})
	obj, listErr := d.only(ctx, d.node.User(), certificatesv1.KubeAPIServerClientKubeletSignerName)
	switch {
	case err != nil || listErr != nil:
		return errors.Join(err, listErr, stateOf(obj))
	case obj == nil:
		return errors.New("the node itself did not request the renewal")
	}
	d.requests = append(d.requests, expected{obj.Name, "Approved,Issued"})
	if err := checkOutcomes(obj, byNodeItself); err != nil {
		return err
	}
	d.say("%s asked for a new one: %s", obj.Spec.Username, obj.Name)
	d.say("approved: %s", byNodeItself.message)
	if err := d.node.CheckIdentity(ctx, renewed); err != nil {
		return err
	}
	d.cert = renewed
	d.say("signed, until %s; the API server knows its holder as %s", renewed.Leaf.NotAfter.Format(time.DateOnly),
		d.node.User())
	return nil
}

// age stores in the node's store the certificate that the manager would have issued 55 minutes ago for 58 minutes. 95
// % of its validity are over, and client-go renews after 90 % at the latest.
func (d *demo) age(cert *tls.Certificate) (*tls.Certificate, error) {
	authority, err := ca.Load(d.cluster.CA.CertPEM, d.cluster.CA.KeyPEM)
	if err != nil {
		return nil, err
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{})
	if err != nil {
		return nil, err
	}
	issued, err := authority.Issue(profile, ca.Request{
		PublicKey:   cert.Leaf.PublicKey,
		Subject:     cert.Leaf.Subject,
		KeyUsage:    cert.Leaf.KeyUsage,
		ExtKeyUsage: cert.Leaf.ExtKeyUsage,
		Lifetime:    58 * time.Minute,
	}, time.Now().Add(-55*time.Minute))
	if err != nil {
		return nil, err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(cert.PrivateKey)
	if err != nil {
		return nil, err
	}
	store, err := d.node.Store()
	if err != nil {
		return nil, err
	}
	return store.Update(issued.PEM, key)
}

// approveServing approves the pending request by hand, and checks the certificate that is signed.
func (d *demo) approveServing(ctx context.Context) error {
	obj, err := d.request(ctx, d.asked.Name)
	if err != nil {
		return err
	}
	if err := checkPending(obj); err != nil {
		return err
	}
	d.say("%s is still pending, though the renewal that came after it was approved", obj.Name)
	said, err := d.kubectl(ctx, "certificate", "approve", obj.Name)
	if err != nil {
		return err
	}
	d.say("kubectl certificate approve: %s", said)
	var cert *tls.Certificate
	err = until(ctx, "the serving certificate is there", func(context.Context) (bool, error) {
		cert = d.serving.Current()
		return cert != nil, nil
	})
	d.serving.Stop()
	obj, getErr := d.request(ctx, d.asked.Name)
	if err != nil || getErr != nil {
		return errors.Join(err, getErr, stateOf(obj))
	}
	if err := errors.Join(checkOutcomes(obj, byHand), d.checkServing(cert.Leaf)); err != nil {
		return err
	}
	d.say("signed for DNS %q and IP %v; clients that trust the CA accept it for both", cert.Leaf.DNSNames,
		cert.Leaf.IPAddresses)
	return nil
}

// checkServing returns why leaf is not a certificate for exactly this node's names, or nil.
func (d *demo) checkServing(leaf *x509.Certificate) error {
	if !slices.Equal(leaf.DNSNames, []string{nodeName}) || len(leaf.IPAddresses) != 1 ||
		len(leaf.EmailAddresses)+len(leaf.URIs) > 0 {
		return fmt.Errorf("the serving certificate is for DNS %q, IP %v, email %q and URI %v", leaf.DNSNames,
			leaf.IPAddresses, leaf.EmailAddresses, leaf.URIs)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(d.cluster.CA.CertPEM)
	for _, name := range []string{nodeName, "127.0.0.1"} {
		options := x509.VerifyOptions{
			Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		if _, err := leaf.Verify(options); err != nil {
			return fmt.Errorf("verify the serving certificate for %s: %w", name, err)
		}
	}
	return nil
}
