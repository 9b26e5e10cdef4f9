package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// explainCommand returns the command that judges requests in a file by a configuration file.
func explainCommand(clock clock.PassiveClock) *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "explain --config FILE -f FILE",
		Short: "Judge requests in a file by a configuration file, without an API server",
		Long: `explain says for each request in a file what the approver and the signer say of its content, by the rules in a
configuration file. It asks no API server, so it assumes that the requester has every permission and that the objects of
approval rules exist, and reads neither a CA nor the inventory. For a request in a cluster, use kubectl csr explain.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringArrayVarP(&files, "f", "f", nil, "`file` with requests, as from kubectl get csr -o json; - is standard input")
	_ = cmd.MarkFlagRequired("f") // the flag exists
	return judges(cmd, clock, &files, (*offline).explain)
}

// rulesCommand returns the command about approval rules.
func rulesCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Try approval rules before use"}
	test := &cobra.Command{
		Use:   "test --config FILE REQUEST...",
		Short: "Show which approval rules accept the requests in files",
		Long: `test shows for each request in the files and for each approval rule of its signer whether the rule accepts the
content of the request, or the first condition that fails. It fails if a test in approval.tests of the configuration file
has another outcome. The command asks no API server. So it takes for true that the requester may use each rule, that its
ServiceAccount and the Services exist, and that no API server trusts the CA of a signer of this configuration.`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.AddCommand(judges(test, clock, &[]string{}, (*offline).test))
	return cmd
}

// judges has cmd call do with the requests in files and in the files that its arguments name. do judges by the
// configuration in the file of --config. It gets none of them if a file cannot be opened. If an object cannot be read, do gets
// the others, and the command fails.
func judges(
	cmd *cobra.Command, clock clock.PassiveClock, files *[]string,
	do func(*offline, context.Context, []*certificatesv1.CertificateSigningRequest, io.Writer) error,
) *cobra.Command {
	configFile := cmd.Flags().String("config", "", "`file` with the configuration of the manager")
	_ = cmd.MarkFlagRequired("config") // the flag exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := newOffline(*configFile, clock)
		if err != nil {
			return err
		}
		var objs []*certificatesv1.CertificateSigningRequest
		var problems []error
		for _, name := range append(*files, args...) {
			in := cmd.InOrStdin()
			if name != "-" {
				file, err := os.Open(name)
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				in = file
			}
			found, err := readRequests(name, in)
			objs, problems = append(objs, found...), append(problems, err)
		}
		return errors.Join(do(o, cmd.Context(), objs, cmd.OutOrStdout()), errors.Join(problems...))
	}
	return cmd
}

// readRequests reads requests in YAML or JSON, one a document or in lists, from a file of that name. The error joins one for
// each object that is no request.
func readRequests(from string, in io.Reader) (objs []*certificatesv1.CertificateSigningRequest, problem error) {
	documents := utilyaml.NewYAMLOrJSONDecoder(in, 4096) // JSON has control characters that YAML forbids
	for count := 1; ; count++ {
		wrong := func(err error) { problem = errors.Join(problem, fmt.Errorf("%s: document %d: %w", from, count, err)) }
		add := func(item runtime.Object) error {
			obj, content := &certificatesv1.CertificateSigningRequest{}, item.(*unstructured.Unstructured)
			if found := content.GroupVersionKind(); found != certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest") {
				wrong(fmt.Errorf("want a CertificateSigningRequest of certificates.k8s.io/v1, found %s", found))
			} else if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, obj); err != nil {
				wrong(err)
			} else {
				objs = append(objs, obj)
			}
			return nil
		}
		document := &unstructured.Unstructured{}
		err := documents.Decode(&document.Object)
		if errors.Is(err, io.EOF) {
			if len(objs) == 0 && problem == nil {
				problem = fmt.Errorf("%s: the file holds no CertificateSigningRequest", from)
			}
			return objs, problem
		}
		switch {
		case err != nil:
		case document.IsList():
			err = document.EachListItem(add)
		case len(document.Object) > 0: // it does not hold comments only
			err = add(document)
		}
		if err != nil { // what follows cannot be read
			wrong(err)
			return objs, problem
		}
	}
}

// offline judges requests by a configuration without an API server.
type offline struct {
	controllers.Options
	tests []config.RuleTest
	clock clock.PassiveClock
}

func newOffline(configFile string, clock clock.PassiveClock) (*offline, error) {
	c, err := config.LoadFile(configFile, cel.New)
	if err != nil {
		return nil, fmt.Errorf("bad configuration:\n%w", err)
	}
	c.Audit = config.Audit{} // nothing is written
	c.NodeBlockList = ""     // and no list is read
	if c.Signing.CA == (config.CA{}) && len(c.Signing.Signers) == 0 {
		c.Signing.Secret = "unknown/unknown" // the rules of Kubernetes' signers need no CA
	}
	o := &offline{tests: c.Approval.Tests, clock: clock}
	if o.Options, err = controllers.FromConfiguration(c); err != nil {
		return nil, err
	}
	if o.Approver != nil {
		o.Approver.Clock, o.Approver.ServerTime = clock, servertime.Of(clock)
		o.Approver.Authorizer = authz.Func(
			func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
				return true, nil
			})
		o.Approver.Assume = true
	}
	if o.Signer != nil {
		o.Signer.Clock, o.Signer.ServerTime = clock, servertime.Of(clock)
		err = o.Signer.FillProfiles()
	}
	return o, err
}

// explain writes what the approver says of each request, and the signer once it is approved.
func (o *offline) explain(ctx context.Context, objs []*certificatesv1.CertificateSigningRequest, out io.Writer) error {
	for _, obj := range objs {
		undecided := obj.DeepCopy()
		undecided.Status = certificatesv1.CertificateSigningRequestStatus{}
		lines := []string{"approver: " + o.approverOn(ctx, undecided), "signer, once it is approved: " + o.signerOn(ctx, undecided)}
		if err := write(out, obj, lines); err != nil {
			return err
		}
	}
	return nil
}

// write writes lines about obj.
func write(out io.Writer, obj *certificatesv1.CertificateSigningRequest, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, ascii.Quote(csr.Shorten(obj.Name)+": "+line)); err != nil {
			return err
		}
	}
	return nil
}

func (o *offline) approverOn(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) string {
	if o.Approver == nil {
		return "it is switched off"
	}
	_, decision, err := o.Approver.Decide(ctx, obj)
	switch {
	case err != nil:
		return "unknown: " + err.Error()
	case decision.Reason == "":
		return "no rule of this configuration approves requests for this signer"
	case decision.Reason == "InventoryUnavailable" || decision.Reason == "InventoryPending":
		return "the content keeps the rules; only the manager knows what belongs to the node"
	}
	return text(decision) + " (if the requester has every permission)"
}

func (o *offline) signerOn(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) string {
	if o.Signer == nil {
		return "it is switched off"
	}
	if _, served := o.Signer.Signers[obj.Spec.SignerName]; !served {
		return "this signer is not configured (signing.signers)"
	}
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "", "", o.clock.Now())
	outcome := o.Signer.Check(ctx, obj)
	if outcome.Verdict == judge.Wait && outcome.Reason != "InternalError" {
		return "Sign, if the CA permits it: the request keeps the rules of this signer"
	}
	return text(outcome.Decision)
}

func text(result judge.Decision) string {
	return fmt.Sprintf("%s, %s: %s", result.Verdict, result.Reason, result.Message)
}

// test writes what each rule says of each request. It returns an error for each test of the configuration with another
// outcome.
func (o *offline) test(ctx context.Context, objs []*certificatesv1.CertificateSigningRequest, out io.Writer) error {
	if o.Approver == nil {
		return errors.New("no approver judges by this configuration")
	}
	accepted := map[string][]string{} // the rules by the name of the request
	for _, obj := range objs {
		if _, twice := accepted[obj.Name]; twice || obj.Name == "" {
			return fmt.Errorf("each request needs a name of its own: %q is empty or given twice", obj.Name)
		}
		rules, lines := o.tryRules(ctx, obj)
		if rules != nil { // otherwise every test of this request fails
			accepted[obj.Name] = rules
		}
		if err := write(out, obj, lines); err != nil {
			return err
		}
	}
	var failures []error
	for _, test := range o.tests {
		found, tried := accepted[test.Request]
		slices.Sort(found)
		if !tried || !slices.Equal(found, slices.Sorted(slices.Values(test.Accepts))) {
			failures = append(failures, fmt.Errorf("test of request %s: accepted by %q, want %q", test.Request, found, test.Accepts))
		}
	}
	return errors.Join(failures...)
}

// tryRules returns the rules that accept obj, or nil if none was tried, and what each rule says.
func (o *offline) tryRules(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (accepting, lines []string) {
	tried, err := o.Approver.TryRules(ctx, obj)
	if len(tried) > 0 {
		accepting = []string{}
	}
	for _, each := range tried {
		lines = append(lines, fmt.Sprintf("rule %s: %s", each.Rule, cmp.Or(each.Objection, "accept")))
		if each.Objection == csr.NoObjection {
			accepting = append(accepting, each.Rule)
		}
	}
	switch {
	case err != nil:
		lines = append(lines, err.Error())
	case len(tried) == 0:
		lines = append(lines, "no approval rule is for signer "+obj.Spec.SignerName)
	}
	return accepting, lines
}
