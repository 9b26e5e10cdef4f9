package plugin

import (
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
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"

	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// checkReport is the result of check. Scripts read its fields.
type checkReport struct {
	APIServer string         `json:"apiServer"`
	Passed    int            `json:"passed"`
	Failed    int            `json:"failed"`
	Unknown   int            `json:"unknown"`
	Results   []check.Result `json:"results"`
	// Note says what is not set up, which is no failure.
	Note string `json:"note,omitempty"`
	// Said holds warnings in the name of the manager, which decide nothing: other users may write Events, too.
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
		report := &checkReport{APIServer: c.host, Results: slices.Concat(
			check.Kubelets(ctx, c.AuthorizationV1().SubjectAccessReviews(), bootstrapGroups, check.NodeGroups),
			c.checkLeaders(ctx), c.checkTrust(ctx), []check.Result{c.checkServing(ctx)},
		)}
		blockList, note := c.checkBlockList(ctx)
		report.Results, report.Note = append(report.Results, blockList...), note
		counts := map[check.Status]*int{check.OK: &report.Passed, check.Failed: &report.Failed, check.Unknown: &report.Unknown}
		for _, result := range report.Results {
			*counts[result.Status]++
		}
		var err error
		if report.Said, err = c.warnings(ctx); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Warning: the Events are unknown: %v\n", err)
		}
		err = c.write(cmd.OutOrStdout(), *asJSON, report, func(p *page) { p.checks(report, all) })
		if err == nil && report.Passed < len(report.Results) {
			err = fmt.Errorf("check: %d failed, %d unknown", report.Failed, report.Unknown)
		}
		return err
	})
	return cmd
}

// checks writes the results, without those that passed unless all is set.
func (p *page) checks(report *checkReport, all bool) {
	for _, result := range report.Results {
		if result.Status == check.OK && !all {
			continue
		}
		p.line(fmt.Sprintf("%-15s  %-7s  %s: %s", result.Check, result.Status, result.Subject, result.Evidence))
		if result.NextStep != "" {
			p.line("  -> " + result.NextStep)
		}
	}
	p.line(fmt.Sprintf("%d checks passed; -v lists them.", report.Passed))
	if report.Note != "" {
		p.line(report.Note)
	}
	if len(report.Said) > 0 {
		p.said(report.Said)
	}
}

// The names of the plugin's own checks.
const (
	managerRunning = "manager-running"
	caTrusted      = "ca-trusted"
	servingAsked   = "serving-asked"
	listEnforced   = "block-list-enforced"
)

// resultOf returns a Result that failed if there is a next step.
func resultOf(name, subject, evidence, nextStep string) check.Result {
	status := map[bool]check.Status{true: check.OK, false: check.Failed}[nextStep == ""]
	return check.Result{Check: name, Subject: subject, Status: status, Evidence: evidence, NextStep: nextStep}
}

// unknown returns the result of a check whose objects can't be read.
func unknown(name, subject, right string, err error) check.Result {
	return check.Result{
		Check: name, Subject: subject, Status: check.Unknown, Evidence: check.ReadError(right, err),
		NextStep: "run the command as a user who may " + right,
	}
}

// checkLeaders reports whether managers renew their Leases.
func (c *cluster) checkLeaders(ctx context.Context) (results []check.Result) {
	const subject = "the Lease of the manager"
	const start = "find out why no manager runs: kubectl get deployments,pods in that namespace, and the log of its pods"
	leaders, err := c.leaders(ctx)
	if err != nil {
		return []check.Result{unknown(managerRunning, subject, "list leases", err)}
	}
	if len(leaders) == 0 {
		return []check.Result{resultOf(managerRunning, subject, "there is no Lease of a manager in the namespaces that were read",
			start+"; if it runs in another namespace, name it with -n")}
	}
	for _, each := range leaders {
		evidence, nextStep := "it has no holder: the last leader has ended", start
		if each.Holder != "" {
			evidence = fmt.Sprintf("held by %s, renewed %s ago", each.Holder, duration.HumanDuration(c.now().Sub(each.Renewed)))
		}
		if each.Alive {
			nextStep = ""
		}
		results = append(results, resultOf(managerRunning, "Lease "+each.Lease, evidence, nextStep))
	}
	return results
}

// trustSource holds CAs that verifiers of the certificates of signer trust.
type trustSource struct {
	signer, name string
	certs        []*x509.Certificate
	nextStep     string        // if the CA is missing
	server       *version.Info // if API servers are the verifiers, the version of the one that answers
	unread       error         // why server is unknown
}

// checkTrust reports whether verifiers trust the CA of the newest certificate of each signer: API servers by the CAs that
// they publish as trusted for clients, others by the signer's ClusterTrustBundles.
func (c *cluster) checkTrust(ctx context.Context) []check.Result {
	newest := map[string]*certificatesv1.CertificateSigningRequest{}
	err := c.requests(ctx, metav1.ListOptions{}, func(obj *certificatesv1.CertificateSigningRequest) {
		name := obj.Spec.SignerName
		if csr.StateOf(obj) == csr.Issued && (newest[name] == nil || newest[name].CreationTimestamp.Before(&obj.CreationTimestamp)) {
			newest[name] = obj.DeepCopy() // the page itself can be released
		}
	})
	if err != nil {
		return []check.Result{unknown(caTrusted, "the CAs of clients", "list certificatesigningrequests", err)}
	}
	sources, results := c.clientCAs(ctx)
	bundles, more := c.trustBundles(ctx)
	results = append(results, more...)
	for _, source := range append(sources, bundles...) {
		if obj := newest[source.signer]; obj != nil {
			results = append(results, source.check(obj, c.now()))
		}
	}
	return results
}

// clientCAs returns the CAs that API servers publish as trusted for clients, for each signer whose certificates they
// verify. The results say why they are unknown.
func (c *cluster) clientCAs(ctx context.Context) (sources []trustSource, results []check.Result) {
	const where = trust.ExtensionKey + " of ConfigMap " + trust.ExtensionNamespace + "/" + trust.ExtensionName
	obj, err := c.CoreV1().ConfigMaps(trust.ExtensionNamespace).Get(ctx, trust.ExtensionName, metav1.GetOptions{})
	if err != nil {
		return nil, []check.Result{unknown(caTrusted, "the CAs of clients", "get configmaps in "+trust.ExtensionNamespace, err)}
	}
	certs, err := trust.Certificates(obj, trust.ExtensionKey)
	if err != nil {
		return nil, []check.Result{{Check: caTrusted, Subject: where, Status: check.Unknown, Evidence: "it cannot be parsed: " + err.Error(),
			NextStep: "correct the --client-ca-file of the API servers"}}
	}
	server, unread := discovery.ToServerVersionInterfaceWithContext(c.Discovery()).ServerVersionWithContext(ctx)
	for _, signer := range slices.DeleteFunc(csr.BuiltinSigners(), func(name string) bool { return !csr.VerifiedByAPIServers(name) }) {
		sources = append(sources, trustSource{signer, where, certs,
			"append that CA to the --client-ca-file of every API server, or sign with one that is in it", server, unread})
	}
	return sources, nil
}

// trustBundles returns the ClusterTrustBundles of each signer that has any. The results say why they are unknown.
func (c *cluster) trustBundles(ctx context.Context) (sources []trustSource, results []check.Result) {
	bundles := map[string][]*x509.Certificate{}
	err := each(ctx, c.CertificatesV1().ClusterTrustBundles().List, metav1.ListOptions{}, func(bundle *certificatesv1.ClusterTrustBundle) {
		if certs, err := ca.ParseCertificates([]byte(bundle.Spec.TrustBundle)); err == nil { // the API server has parsed it
			bundles[bundle.Spec.SignerName] = append(bundles[bundle.Spec.SignerName], certs...)
		}
	})
	if err != nil && !apierrors.IsNotFound(err) { // before Kubernetes 1.37 they are not served by default
		results = []check.Result{unknown(caTrusted, "ClusterTrustBundles", "list clustertrustbundles", err)}
	}
	for _, signer := range slices.Sorted(maps.Keys(bundles)) {
		sources = append(sources, trustSource{signer, "the ClusterTrustBundles of " + csr.Shorten(signer), bundles[signer],
			"publish that CA in a ClusterTrustBundle of the signer; if a SigningAuthority does it: kubectl csr rotation status", nil, nil})
	}
	return sources, results
}

// check reports whether a CA of s has issued the certificate of obj.
func (s trustSource) check(obj *certificatesv1.CertificateSigningRequest, now time.Time) check.Result {
	subject := "the CA of " + csr.Shorten(s.signer)
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		return resultOf(caTrusted, subject, fmt.Sprintf("request %q has no certificate that can be parsed", csr.ShortenTo(obj.Name, csr.MaxName)), s.nextStep)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range s.certs {
		roots.AddCert(root)
	}
	for _, one := range certs[1:] {
		between.AddCert(one)
	}
	chains, err := certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	issuer := csr.Shorten(certs[0].Issuer.String())
	if err != nil {
		return resultOf(caTrusted, subject, fmt.Sprintf("%s does not trust issuer %q of the newest certificate, of request %q: %v",
			s.name, issuer, csr.ShortenTo(obj.Name, csr.MaxName), err), s.nextStep)
	}
	switch needsMLDSA := !slices.ContainsFunc(chains, withoutMLDSA); {
	case needsMLDSA && s.unread != nil:
		return unknown(caTrusted, "ML-DSA at the API server, which "+subject+" needs", "get /version", s.unread)
	case needsMLDSA && s.server != nil && !trust.ReadsMLDSA(s.server.GoVersion):
		return resultOf(caTrusted, subject, fmt.Sprintf("the newest certificate, its issuer %q, or a CA above it has an ML-DSA key, and the API server "+
			"is built with %s: only Go 1.27 and later can verify ML-DSA", issuer, csr.Shorten(s.server.GoVersion)),
			"update every API server, or sign with a CA that has another key")
	}
	return resultOf(caTrusted, subject, fmt.Sprintf("%s trusts issuer %q of the newest certificate", s.name, issuer), "")
}

// withoutMLDSA reports whether a verifier without ML-DSA can verify chain, whose last certificate it trusts.
func withoutMLDSA(chain []*x509.Certificate) bool {
	return !slices.ContainsFunc(chain, func(one *x509.Certificate) bool { return one.PublicKeyAlgorithm == x509.MLDSA })
}

const (
	// servingSoon is how long a kubelet may take until it asks for a serving certificate.
	servingSoon = 5 * time.Minute
	// servingKept is how long an approved request is stored at least, by the default retention.
	servingKept = 55 * time.Minute
)

// checkServing reports the new nodes that have made no request for a serving certificate, if other nodes have. Requests
// are deleted after an hour, so nothing is known of older nodes.
func (c *cluster) checkServing(ctx context.Context) check.Result {
	const subject = "serving certificates of new nodes"
	asked, silent := map[string]bool{}, []string{}
	options := metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName}
	err := c.requests(ctx, options, func(obj *certificatesv1.CertificateSigningRequest) {
		if (csr.Requester{Username: obj.Spec.Username, Groups: obj.Spec.Groups}).IsNode() { // others can ask, too
			asked[obj.Spec.Username] = true
		}
	})
	if err != nil {
		return unknown(servingAsked, subject, "list certificatesigningrequests", err)
	}
	err = each(ctx, c.CoreV1().Nodes().List, metav1.ListOptions{}, func(node *corev1.Node) {
		age := c.now().Sub(node.CreationTimestamp.Time)
		if !asked[csr.NodeUserPrefix+node.Name] && age >= servingSoon && age <= servingKept {
			silent = append(silent, node.Name)
		}
	})
	if err != nil {
		return unknown(servingAsked, subject, "list nodes", err)
	}
	if len(asked) == 0 || len(silent) == 0 {
		return resultOf(servingAsked, subject, fmt.Sprintf("%d requesters have asked lately, and no node that is new has not", len(asked)), "")
	}
	return resultOf(servingAsked, subject,
		fmt.Sprintf("%d nodes have never asked, while others have: %s", len(silent), strings.Join(csr.ShortenAll(silent), ", ")),
		"set serverTLSBootstrap: true in the configuration of these kubelets, and restart them")
}

// checkBlockList reports whether each API server refuses what the block list names. If none is asked, the note says so.
func (c *cluster) checkBlockList(ctx context.Context) (results []check.Result, note string) {
	_, servers, err := c.servers(ctx, c.listName(blockListName))
	switch {
	case apierrors.IsNotFound(err):
		return nil, "Blocking works only for new certificates: API servers are not known to follow the block list. See " + blockListPage + "."
	case err != nil:
		return []check.Result{unknown(listEnforced, "the block list", "get configmaps of the block list", err)}, ""
	}
	for _, server := range servers {
		evidence, nextStep := "it follows since "+server.Since.Format(time.RFC3339), ""
		if server.Problem != "" {
			evidence, nextStep = csr.Shorten(server.Problem), "see that write-authorization runs on its host: "+blockListPage
		}
		results = append(results, resultOf(listEnforced, "API server "+csr.Shorten(server.Address), evidence, nextStep))
	}
	return results, ""
}
