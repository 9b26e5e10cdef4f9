package plugin

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// checkReport is the result of check. Scripts read its fields.
type checkReport struct {
	APIServer string         `json:"apiServer"`
	Passed    int            `json:"passed"`
	Failed    int            `json:"failed"`
	Unknown   int            `json:"unknown"`
	Results   []check.Result `json:"results"`
	// Said holds what the manager said about itself. It changes no result: others may write Events too.
	Said []statement `json:"said"`
}

// checkCommand returns the command that checks what the manager and the kubelets depend on.
func checkCommand(connect connector) *cobra.Command {
	var all bool
	var bootstrapGroups []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check what the manager and the kubelets depend on",
		Long: `check asks the API server whether kubelets may join and renew, whether a manager renews its Lease, whether API
servers trust the CAs that issue, and which new nodes have never asked for a serving certificate. It changes nothing. It
prints what is wrong, what is unknown, and how many checks passed. The exit code is 1 unless all checks pass.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&all, "all", "v", false, "list the checks that passed too")
	cmd.Flags().StringSliceVar(&bootstrapGroups, "bootstrap-groups", check.BootstrapGroups,
		"`groups` of which at least one must be able to join nodes")
	asJSON := jsonFlag(cmd)
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, _ []string) error {
		ctx := cmd.Context()
		results := slices.Concat(
			check.Kubelets(ctx, c.AuthorizationV1().SubjectAccessReviews(), bootstrapGroups, check.NodeGroups),
			c.checkLeaders(ctx), c.checkTrust(ctx), c.checkServing(ctx),
		)
		report := &checkReport{APIServer: c.host, Results: results}
		counts := map[check.Status]*int{check.OK: &report.Passed, check.Failed: &report.Failed, check.Unknown: &report.Unknown}
		for _, result := range results {
			*counts[result.Status]++
		}
		var err error
		if report.Said, err = c.warnings(ctx); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Warning: what the manager said is unknown: %v\n", err)
		}
		if *asJSON {
			err = writeJSON(cmd.OutOrStdout(), report)
		} else {
			_, err = cmd.OutOrStdout().Write(report.text(all, c.now()))
		}
		if err == nil && report.Passed < len(results) {
			err = fmt.Errorf("check: %d failed, %d unknown", report.Failed, report.Unknown)
		}
		return err
	})
	return cmd
}

// text returns the results, without those that passed unless all is set. A next step is not wrapped, because it may be a
// command to copy.
func (r *checkReport) text(all bool, now time.Time) []byte {
	var page bytes.Buffer
	for _, result := range r.Results {
		if result.Status == check.OK && !all {
			continue
		}
		label := fmt.Sprintf("%-15s  %-7s  ", result.Check, result.Status)
		page.WriteString(ascii.Wrap(label, oneLine(result.Subject+": "+result.Evidence)))
		if result.NextStep != "" {
			page.WriteString(strings.Repeat(" ", len(label)) + "-> " + oneLine(result.NextStep) + "\n")
		}
	}
	fmt.Fprintf(&page, "%d checks passed", r.Passed)
	if !all && r.Passed > 0 {
		page.WriteString("; -v lists them")
	}
	page.WriteString(".\n")
	if len(r.Said) > 0 {
		page.WriteString("\nSaid by the manager (anyone who may create Events can write this)\n")
	}
	for _, said := range r.Said[:min(len(r.Said), 20)] {
		label := fmt.Sprintf("%-8s ", duration.HumanDuration(now.Sub(said.At))+" ago")
		page.WriteString(ascii.Wrap(label, oneLine(said.By+" "+said.Reason+": "+said.Message)))
	}
	return page.Bytes()
}

// The names of the plugin's own checks.
const (
	managerRunning = "manager-running"
	caTrusted      = "ca-trusted"
	servingAsked   = "serving-asked"
)

// unknown returns the result of a check whose object can't be read.
func unknown(name, subject, right string, err error) check.Result {
	return check.Result{
		Check: name, Subject: subject, Status: check.Unknown, Evidence: check.ReadError(right, err),
		NextStep: "run the command as a user who may " + right,
	}
}

// checkLeaders reports whether managers renew their Leases.
func (c *cluster) checkLeaders(ctx context.Context) []check.Result {
	leaders, err := c.leaders(ctx)
	if err != nil {
		return []check.Result{unknown(managerRunning, "the Lease of the manager", "list leases", err)}
	}
	const start = "find out why no manager runs: kubectl get deployments,pods in that namespace, and the log of its pods"
	if len(leaders) == 0 {
		return []check.Result{{
			Check: managerRunning, Subject: "the Lease of the manager", Status: check.Failed,
			Evidence: "there is no Lease of a manager in the namespaces that were read", NextStep: start +
				"; if it runs in another namespace, name it with -n",
		}}
	}
	var results []check.Result
	for _, each := range leaders {
		result := check.Result{
			Check: managerRunning, Subject: "Lease " + each.Lease, Status: check.OK,
			Evidence: fmt.Sprintf("held by %s, renewed %s ago", each.Holder, duration.HumanDuration(c.now().Sub(each.Renewed))),
		}
		if !each.Alive {
			result.Status, result.NextStep = check.Failed, start
			if each.Holder == "" {
				result.Evidence = "it has no holder: the last leader has ended"
			}
		}
		results = append(results, result)
	}
	return results
}

// published names where API servers publish the CAs that they trust for clients.
const publishedNamespace, publishedName, publishedKey = "kube-system", "extension-apiserver-authentication", "client-ca-file"

// checkTrust reports whether verifiers trust the CA of the newest certificate of each signer: API servers by the CAs that
// they publish as trusted for clients, others by the signer's ClusterTrustBundles.
func (c *cluster) checkTrust(ctx context.Context) []check.Result {
	const where = publishedKey + " of ConfigMap " + publishedNamespace + "/" + publishedName
	obj, err := c.CoreV1().ConfigMaps(publishedNamespace).Get(ctx, publishedName, metav1.GetOptions{})
	if err != nil {
		return []check.Result{unknown(caTrusted, "the CAs of clients", "get configmaps in "+publishedNamespace, err)}
	}
	trusted, err := ca.ParseCertificates([]byte(obj.Data[publishedKey]))
	if err != nil {
		return []check.Result{{Check: caTrusted, Subject: where, Status: check.Unknown, Evidence: "it cannot be parsed: " + err.Error(),
			NextStep: "correct the --client-ca-file of the API servers"}}
	}
	newest := map[string]*certificatesv1.CertificateSigningRequest{}
	err = c.requests(ctx, metav1.ListOptions{}, func(obj *certificatesv1.CertificateSigningRequest) {
		name := obj.Spec.SignerName
		if csr.StateOf(obj) == csr.Issued && (newest[name] == nil || newest[name].CreationTimestamp.Before(&obj.CreationTimestamp)) {
			newest[name] = obj.DeepCopy()
		}
	})
	if err != nil {
		return []check.Result{unknown(caTrusted, "the CAs of clients", "list certificatesigningrequests", err)}
	}
	var results []check.Result
	for _, name := range csr.BuiltinSigners() {
		if newest[name] != nil && csr.VerifiedByAPIServers(name) {
			result := trustIn(newest[name], trusted, where, c.now())
			if result.Status == check.Failed {
				result.NextStep = "append that CA to the --client-ca-file of every API server, or sign with one that is in it"
			}
			results = append(results, result)
		}
	}
	return append(results, c.checkBundles(ctx, newest)...)
}

// checkBundles reports whether the ClusterTrustBundles of a signer, if it has any, hold the CA of its newest certificate.
func (c *cluster) checkBundles(ctx context.Context, newest map[string]*certificatesv1.CertificateSigningRequest) []check.Result {
	list, err := c.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err): // before Kubernetes 1.37 they are not served by default
		return nil
	case err != nil:
		return []check.Result{unknown(caTrusted, "ClusterTrustBundles", "list clustertrustbundles", err)}
	}
	bundles := map[string][]*x509.Certificate{}
	for _, bundle := range list.Items {
		certs, err := ca.ParseCertificates([]byte(bundle.Spec.TrustBundle)) // the API server has parsed it
		if err == nil && newest[bundle.Spec.SignerName] != nil {
			bundles[bundle.Spec.SignerName] = append(bundles[bundle.Spec.SignerName], certs...)
		}
	}
	var results []check.Result
	for _, name := range slices.Sorted(maps.Keys(bundles)) {
		result := trustIn(newest[name], bundles[name], "the ClusterTrustBundles of "+csr.Shorten(name), c.now())
		if result.Status == check.Failed {
			result.NextStep = "publish that CA in a ClusterTrustBundle of the signer; if a SigningAuthority does it: kubectl csr rotation status"
		}
		results = append(results, result)
	}
	return results
}

// trustIn reports whether one of trusted has issued the certificate of obj.
func trustIn(obj *certificatesv1.CertificateSigningRequest, trusted []*x509.Certificate, where string, now time.Time) check.Result {
	result := check.Result{Check: caTrusted, Subject: "the CA of " + csr.Shorten(obj.Spec.SignerName), Status: check.OK}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		result.Status, result.Evidence = check.Failed, fmt.Sprintf("request %s has no certificate that can be parsed", obj.Name)
		return result
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range trusted {
		roots.AddCert(root)
	}
	for _, one := range certs[1:] {
		between.AddCert(one)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	issuer := csr.Shorten(certs[0].Issuer.String())
	if err != nil {
		result.Status = check.Failed
		result.Evidence = fmt.Sprintf("%s does not trust issuer %q of the newest certificate, of request %s: %v", where, issuer, obj.Name, err)
		return result
	}
	result.Evidence = fmt.Sprintf("%s trusts issuer %q of the newest certificate", where, issuer)
	return result
}

const (
	// servingSoon is how long a kubelet may take until it asks for a serving certificate.
	servingSoon = 5 * time.Minute
	// servingKept is how long an approved request is stored at least, by the default retention.
	servingKept = 55 * time.Minute
)

// checkServing reports the new nodes that have made no request for a serving certificate, if other nodes have. Requests
// are deleted after an hour, so nothing is known of older nodes.
func (c *cluster) checkServing(ctx context.Context) []check.Result {
	const subject = "serving certificates of new nodes"
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []check.Result{unknown(servingAsked, subject, "list nodes", err)}
	}
	asked := map[string]bool{}
	options := metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName}
	err = c.requests(ctx, options, func(obj *certificatesv1.CertificateSigningRequest) { asked[obj.Spec.Username] = true })
	if err != nil {
		return []check.Result{unknown(servingAsked, subject, "list certificatesigningrequests", err)}
	}
	silent := slices.DeleteFunc(nodes.Items, func(node corev1.Node) bool {
		age := c.now().Sub(node.CreationTimestamp.Time)
		return asked[csr.NodeUserPrefix+node.Name] || age < servingSoon || age > servingKept
	})
	if len(asked) == 0 || len(silent) == 0 {
		return []check.Result{{Check: servingAsked, Subject: subject, Status: check.OK,
			Evidence: fmt.Sprintf("%d requesters have asked lately, and no node that is new has not", len(asked))}}
	}
	var names []string
	for _, node := range silent {
		names = append(names, node.Name)
	}
	return []check.Result{{Check: servingAsked, Subject: subject, Status: check.Failed,
		Evidence: fmt.Sprintf("%d nodes have never asked, while others have: %s", len(names), strings.Join(csr.ShortenAll(names), ", ")),
		NextStep: "set serverTLSBootstrap: true in the configuration of these kubelets, and restart them"}}
}
