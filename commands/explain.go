package commands

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// explainCommand returns the command that judges requests in a file by the rules of a configuration file.
func explainCommand() *cobra.Command {
	var file, configFile string
	cmd := &cobra.Command{
		Use:   "explain --config FILE -f FILE",
		Short: "Judge requests in a file by a configuration file, without an API server",
		Long: `explain judges requests in a file by the rules in a configuration file: what the approver and the signer say
of the content, and what inline rows of the inventory say of the names. It asks no API server, so it assumes that the
requester has every permission, and reads no CA. For a request in a cluster, use kubectl csr explain.`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVarP(&file, "f", "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is standard input")
	cmd.Flags().StringVar(&configFile, "config", "", "`file` with the configuration of the manager")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := atMost(0, args); err != nil || file == "" || configFile == "" {
			return usageError(cmd, errors.Join(err, errors.New("give --config FILE and -f FILE")))
		}
		configuration, err := config.LoadFile(configFile)
		if err != nil {
			return fmt.Errorf("bad configuration:\n%w", err)
		}
		in := cmd.InOrStdin()
		if file != "-" {
			opened, err := os.Open(file)
			if err != nil {
				return fmt.Errorf("-f: %w", err)
			}
			defer func() { _ = opened.Close() }()
			in = opened
		}
		return explainAll(cmd.Context(), configuration, in, cmd.OutOrStdout(), clock.RealClock{})
	}
	return cmd
}

// explainAll explains every request in a stream. It returns an error for each document that is not a request, and
// explains the others.
func explainAll(ctx context.Context, c *config.Configuration, in io.Reader, out io.Writer, clock clock.PassiveClock) error {
	objs, problem := readRequests(in)
	if len(objs) == 0 && problem == nil {
		return errors.New("-f: the file holds no CertificateSigningRequest")
	}
	judge, err := newOffline(c, clock)
	if err != nil {
		return err
	}
	for _, obj := range objs {
		facts, req := explain.Of(obj)
		page := explain.NewPage(clock.Now())
		page.Title(fmt.Sprintf("CertificateSigningRequest %q", facts.Name))
		page.Facts(facts)
		judge.approver(ctx, page, obj, req)
		judge.signer(ctx, page, obj)
		if _, err := io.WriteString(out, page.String()+"\n"); err != nil {
			return err
		}
	}
	return problem
}

// readRequests reads requests in YAML or JSON, one a document or in lists. The error joins one for each document that
// cannot be read.
func readRequests(in io.Reader) (objs []*certificatesv1.CertificateSigningRequest, problem error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for count := 1; ; count++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objs, problem
		}
		if err != nil {
			return objs, errors.Join(problem, fmt.Errorf("-f: %w", err))
		}
		if data, err := yaml.YAMLToJSON(document); err == nil && bytes.Equal(data, []byte("null")) { // comments only
			continue
		}
		found, err := requestsIn(document)
		objs = append(objs, found...)
		if err != nil {
			problem = errors.Join(problem, fmt.Errorf("-f: document %d: %w", count, err))
		}
	}
}

// requestsIn returns the requests in a document: one, or those of a list.
func requestsIn(document []byte) (objs []*certificatesv1.CertificateSigningRequest, problem error) {
	decoded, err := runtime.Decode(clientgoscheme.Codecs.UniversalDeserializer(), document)
	if err != nil {
		return nil, err
	}
	switch obj := decoded.(type) {
	case *certificatesv1.CertificateSigningRequest:
		return []*certificatesv1.CertificateSigningRequest{obj}, nil
	case *certificatesv1.CertificateSigningRequestList:
		for i := range obj.Items {
			objs = append(objs, &obj.Items[i])
		}
		return objs, nil
	case *corev1.List:
		for _, item := range obj.Items {
			found, err := requestsIn(item.Raw)
			objs, problem = append(objs, found...), errors.Join(problem, err)
		}
		return objs, problem
	}
	return nil, fmt.Errorf("want a CertificateSigningRequest of certificates.k8s.io/v1, found %s",
		decoded.GetObjectKind().GroupVersionKind())
}

// offline judges requests by a configuration without an API server.
type offline struct {
	options controllers.Options
	rows    inventory.Sources // the inline rows
	now     time.Time
}

func newOffline(c *config.Configuration, clock clock.PassiveClock) (*offline, error) {
	read := *c
	read.Audit = config.Audit{} // explain writes nothing
	read.NodeBlockList = ""     // and reads no list
	if read.Signing.CA == (config.CA{}) && len(read.Signing.Signers) == 0 {
		read.Signing.Secret = "unknown/unknown" // the rules of Kubernetes' signers need no CA
	}
	options, err := controllers.FromConfiguration(&read)
	if err != nil {
		return nil, err
	}
	o := &offline{options: options, now: clock.Now()}
	if options.Approver != nil {
		options.Approver.Clock, options.Approver.ServerTime = clock, servertime.Of(clock)
		options.Approver.Authorizer = authz.Func(
			func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
				return true, nil
			})
	}
	if options.Signer != nil {
		options.Signer.Clock, options.Signer.ServerTime = clock, servertime.Of(clock)
		if err := options.Signer.Offline(); err != nil {
			return nil, err
		}
	}
	for _, source := range c.Approval.Inventory.Sources {
		if source.Static == nil || source.Static.ConfigMap != "" {
			continue
		}
		rows, mistakes := static.New(field.NewPath("rows"), source.Static.Rows)
		if err := mistakes.ToAggregate(); err != nil {
			return nil, err
		}
		o.rows = append(o.rows, rows)
	}
	return o, nil
}

// undecided returns obj as it was before any decision.
func undecided(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	obj = obj.DeepCopy()
	obj.Status = certificatesv1.CertificateSigningRequestStatus{}
	return obj
}

// approver writes what the approver says of obj.
func (o *offline) approver(
	ctx context.Context, page *explain.Page, obj *certificatesv1.CertificateSigningRequest, req *csr.Request,
) {
	page.Title("Approver")
	if o.options.Approver == nil || !slices.Contains(o.signers(), obj.Spec.SignerName) {
		page.Row("decision", "none: no rule of this configuration approves requests for this signer")
		return
	}
	_, decision, err := o.options.Approver.Decide(ctx, undecided(obj))
	switch {
	case err != nil:
		page.Row("decision", "unknown: "+err.Error())
	case decision.Reason == "InventoryUnavailable" || decision.Reason == "InventoryPending":
		page.Row("decision", "the content keeps the rules; only the manager knows what belongs to the node")
		o.inventory(ctx, page, req)
	default:
		writeResult(page, decision.Result)
		page.Row("assumes", "that the requester has every permission")
	}
}

func (o *offline) signers() []string {
	var names []string
	for _, rule := range o.options.Approver.Rules {
		names = append(names, rule.SignerName)
	}
	return names
}

// inventory writes what the inline rows say of the names in req.
func (o *offline) inventory(ctx context.Context, page *explain.Page, req *csr.Request) {
	node := req.NodeName()
	found, err := o.rows.Lookup(ctx, node, req)
	if err != nil || found.Entry == nil {
		page.Row("inventory", "no inline row is for this node")
		return
	}
	for _, value := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
		said := "belongs to the node"
		if claim, err := o.rows.Claim(found, node, value, nil); err != nil || claim != (inventory.Claim{}) {
			said = "does not belong to the node by these rows alone (SANNotOwned)"
		}
		page.Row(value.String(), found.Source+": "+said)
	}
}

// signer writes what the signer says of obj once it is approved.
func (o *offline) signer(ctx context.Context, page *explain.Page, obj *certificatesv1.CertificateSigningRequest) {
	page.Title("Signer, once the request is approved")
	if o.options.Signer == nil {
		page.Row("decision", "none: the signer is switched off")
		return
	}
	if _, served := o.options.Signer.Signers[obj.Spec.SignerName]; !served {
		page.Row("decision", "none: this signer is not configured (signing.signers)")
		return
	}
	approved := undecided(obj)
	csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", o.now)
	judged := o.options.Signer.Judge(ctx, approved)
	if judged.Verdict == verdict.Wait && judged.Reason != "InternalError" {
		page.Row("decision", "sign, if the CA permits it: the request keeps the rules of this signer")
		return
	}
	writeResult(page, judged.Result)
}

func writeResult(page *explain.Page, result verdict.Result) {
	page.Row("decision", result.Verdict.String())
	if result.Reason != "" {
		page.Row("reason", result.Reason)
		page.Row("message", result.Message)
	}
}
