package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	csrutil "k8s.io/client-go/util/certificate/csr"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Renewal renews the certificates of the kubelet of this host.
type Renewal struct {
	// Kubeconfig is the kubelet's. It names the pair in its folder kubelet-client-current.pem.
	Kubeconfig string
	// Serving says that the serving certificate is renewed, too, if a signer has issued it.
	Serving bool
	// Healthz and Address are where the kubelet answers health checks, and where it serves: host:port. Without an Address it is
	// where the Node says that API servers reach it.
	Healthz, Address string
	// Back is how long the kubelet may take to come back.
	Back  time.Duration
	Clock clock.PassiveClock
	Log   logr.Logger

	cluster *rest.Config // of the kubeconfig
	api     kubernetes.Interface
	serving store
	node    string
}

// Run renews what the CA that signs now has not issued, and restarts the kubelet if anything was renewed, or if an earlier Run
// was not finished. If the kubelet does not come back, it gets its old certificates back. The returned error says why nothing is
// renewed, and what to do.
func (r *Renewal) Run(ctx context.Context) error {
	signal, err := signalFor("/")
	if err != nil {
		return err
	}
	if _, err := mainProcess(); err != nil { // before anything is requested
		return err
	}
	client, err := r.connect()
	if err != nil {
		return err
	}
	pair, err := client.read()
	if err != nil {
		return err
	}
	r.node = strings.TrimPrefix(pair.Leaf.Subject.CommonName, csr.NodeUserPrefix)
	kinds := []kind{{client, certificatesv1.KubeAPIServerClientKubeletSignerName, certificate.DefaultKubeletClientGetUsages}}
	if _, err := os.Lstat(r.serving.current()); errors.Is(err, fs.ErrNotExist) {
		r.Serving = false // it signs its serving certificate itself
	}
	if r.Serving { // first, because the old client certificate requests it
		serving := kind{r.serving, certificatesv1.KubeletServingSignerName, certificate.DefaultKubeletServingGetUsages}
		kinds = append([]kind{serving}, kinds...)
	}
	if err := r.ready(ctx, kinds); err != nil {
		return err
	}
	renewed := false
	for _, each := range kinds {
		unfinished, err := each.unfinished()
		if err == nil && !unfinished {
			unfinished, err = r.renew(ctx, each)
		}
		if err != nil {
			return err // what was renewed before is finished by the next Run
		}
		renewed = renewed || unfinished
	}
	if !renewed {
		r.Log.Info("The CA that signs now has issued the certificates of this kubelet")
		return nil
	}
	if err = r.restart(ctx, signal); err == nil {
		return r.each(kinds, store.finish)
	}
	err = fmt.Errorf("the kubelet did not come back with its new certificates, and has the old ones again: %w", err)
	return errors.Join(err, r.each(kinds, store.undo), r.restart(context.WithoutCancel(ctx), signal))
}

// connect reads the kubeconfig of the kubelet, and returns where the kubelet keeps its client certificate.
func (r *Renewal) connect() (store, error) {
	var err error
	if r.cluster, err = clientcmd.BuildConfigFromFlags("", r.Kubeconfig); err != nil {
		return store{}, fmt.Errorf("read the kubeconfig of the kubelet: %w", ascii.WithoutKeys(err))
	}
	client := store{filepath.Dir(r.cluster.CertFile), "kubelet-client"}
	if r.cluster.CertFile != client.current() || r.cluster.KeyFile != client.current() {
		return store{}, fmt.Errorf("%s does not name kubelet-client-current.pem as client-certificate and client-key: if that file is in "+
			"/var/lib/kubelet/pki, correct both paths and restart the kubelet. Else this kubelet does not rotate its certificate", r.Kubeconfig)
	}
	r.serving = store{client.dir, "kubelet-server"}
	r.api, err = kubernetes.NewForConfig(r.cluster)
	return client, err
}

// ready finds the kubelet's address, and returns an error unless the kubelet is healthy, or a renewal was not finished. Else a
// health check at another address would look like a kubelet that does not come back.
func (r *Renewal) ready(ctx context.Context, kinds []kind) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if r.Serving && r.Address == "" {
		node, err := r.api.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the Node: %w", err)
		}
		for _, each := range node.Status.Addresses {
			if each.Type == corev1.NodeInternalIP && r.Address == "" {
				r.Address = net.JoinHostPort(each.Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
			}
		}
	}
	begun := false
	err := r.each(kinds, func(store) error { begun = true; return nil })
	if err != nil || begun {
		return err
	}
	if err = r.healthy(ctx); err != nil {
		return fmt.Errorf("the kubelet is not healthy, or has other addresses than those of --healthz and --address: %w", err)
	}
	return nil
}

// kind is a kind of certificates of a kubelet.
type kind struct {
	store
	signer string
	usages func(key any) []certificatesv1.KeyUsage
}

// each calls do for each of kinds that was renewed.
func (r *Renewal) each(kinds []kind, do func(store) error) error {
	var errs []error
	for _, each := range kinds {
		if unfinished, err := each.unfinished(); err != nil || !unfinished {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, do(each.store))
	}
	return errors.Join(errs...)
}

// renew requests a certificate like the one in use, and replaces it. It reports false if the same CA has issued both.
func (r *Renewal) renew(ctx context.Context, k kind) (bool, error) {
	pair, err := k.read()
	if err != nil {
		return false, err
	}
	old := pair.Leaf
	key, keyPEM, err := ca.NewKeyLike(old.PublicKey)
	if err != nil {
		return false, err
	}
	request, err := certutil.MakeCSRFromTemplate(key, &x509.CertificateRequest{Subject: old.Subject, DNSNames: old.DNSNames, IPAddresses: old.IPAddresses})
	if err != nil {
		return false, err
	}
	name, uid, err := csrutil.RequestCertificateWithContext(ctx, r.api, request, "", k.signer, nil, k.usages(key), key)
	if err != nil {
		return false, err
	}
	r.Log.Info("Requested a certificate", "request", name, "signer", k.signer)
	issued, err := csrutil.WaitForCertificate(ctx, r.api, name, uid)
	if err != nil {
		return false, fmt.Errorf("request %s: %w", name, err)
	}
	next, err := tls.X509KeyPair(issued, keyPEM)
	if err != nil {
		return false, fmt.Errorf("request %s: %w", name, err)
	}
	if bytes.Equal(next.Leaf.RawIssuer, old.RawIssuer) && bytes.Equal(next.Leaf.AuthorityKeyId, old.AuthorityKeyId) {
		return false, nil
	}
	if k.signer == certificatesv1.KubeAPIServerClientKubeletSignerName {
		if err := check.KnownAs(ctx, r.cluster, issued, keyPEM, old.Subject.CommonName); err != nil {
			return false, err
		}
	}
	r.Log.Info("Replaces a certificate", "file", k.current(), "notAfter", next.Leaf.NotAfter)
	return true, k.replace(issued, keyPEM, r.Clock.Now())
}

// restart ends the kubelet if it runs, and waits until its successor is healthy, renews its Lease and serves the certificate in use.
func (r *Renewal) restart(ctx context.Context, signal os.Signal) error {
	ended, old := r.Clock.Now(), 0
	if process, err := mainProcess(); err == nil {
		old = process.Pid
		if err := process.Signal(signal); err != nil {
			return fmt.Errorf("end the kubelet, process %d: %w", old, err)
		}
		r.Log.Info("Ended the kubelet, so that its service starts it again", "process", old, "signal", signal)
	}
	var problem error
	err := wait.PollUntilContextTimeout(ctx, time.Second, r.Back, false, func(ctx context.Context) (bool, error) {
		problem = r.back(ctx, old, ended)
		return problem == nil, nil
	})
	return errors.Join(err, problem)
}

// back returns why the kubelet is not back since it was ended, when it was process old.
func (r *Renewal) back(ctx context.Context, old int, ended time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	process, err := mainProcess()
	if err != nil {
		return err
	}
	if process.Pid == old {
		return fmt.Errorf("process %d has not ended", old)
	}
	if err := r.healthy(ctx); err != nil {
		return err
	}
	lease, err := r.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, r.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Lease of the node: %w", err)
	}
	if at := lease.Spec.RenewTime; at == nil || !at.After(ended) {
		return fmt.Errorf("the Lease of node %s was not renewed since", r.node)
	}
	return nil
}

// healthy returns an error unless the kubelet's health check succeeds, and it serves with the certificate in use.
func (r *Renewal) healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Healthz+"/healthz", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", request.URL, answer.Status)
	}
	if !r.Serving {
		return nil
	}
	pair, err := r.serving.read()
	if err != nil {
		return err
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // it is compared, and nothing is sent
	connection, err := dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	if !connection.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(pair.Leaf) {
		return fmt.Errorf("%s shows another certificate than that in %s", r.Address, r.serving.current())
	}
	return nil
}
