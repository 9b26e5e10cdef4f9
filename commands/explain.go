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
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
of the content. It asks no API server, so it assumes that the requester has every permission and that the objects of
approval rules exist, and reads neither a CA nor the inventory. For a request in a cluster, use kubectl csr explain.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "f", "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is standard input")
	cmd.Flags().StringVar(&configFile, "config", "", "`file` with the configuration of the manager")
	_, _ = cmd.MarkFlagRequired("config"), cmd.MarkFlagRequired("f") // the flags exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
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
	objs, problem := readRequests("-f", in)
	judge, err := newOffline(c, clock)
	if err != nil {
		return err
	}
	for _, obj := range objs {
		facts, _ := explain.Of(obj)
		page := explain.NewPage(clock.Now())
		page.Title(fmt.Sprintf("CertificateSigningRequest %q", facts.Name))
		page.Facts(facts)
		judge.approver(ctx, page, obj)
		judge.signer(ctx, page, obj)
		if _, err := io.WriteString(out, page.String()+"\n"); err != nil {
			return err
		}
	}
	return problem
}

// readRequests reads requests in YAML or JSON, one a document or in lists. The error joins one for each document of the
// file from that cannot be read, or says that there is no request.
func readRequests(from string, in io.Reader) (objs []*certificatesv1.CertificateSigningRequest, problem error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for count := 1; ; count++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			if len(objs) == 0 && problem == nil {
				problem = fmt.Errorf("%s: the file holds no CertificateSigningRequest", from)
			}
			return objs, problem
		}
		if err != nil {
			return objs, errors.Join(problem, fmt.Errorf("%s: %w", from, err))
		}
		if data, err := yaml.YAMLToJSON(document); err == nil && bytes.Equal(data, []byte("null")) { // comments only
			continue
		}
		found, err := requestsIn(document)
		objs = append(objs, found...)
		if err != nil {
			problem = errors.Join(problem, fmt.Errorf("%s: document %d: %w", from, count, err))
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
		options.Approver.Assume()
	}
	if options.Signer != nil {
		options.Signer.Clock, options.Signer.ServerTime = clock, servertime.Of(clock)
		if err := options.Signer.Offline(); err != nil {
			return nil, err
		}
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
func (o *offline) approver(ctx context.Context, page *explain.Page, obj *certificatesv1.CertificateSigningRequest) {
	page.Title("Approver")
	forSigner := func(rule approver.Rule) bool { return rule.SignerName == obj.Spec.SignerName }
	if o.options.Approver == nil || !slices.ContainsFunc(o.options.Approver.Rules, forSigner) {
		page.Row("decision", "none: no rule of this configuration approves requests for this signer")
		return
	}
	_, decision, err := o.options.Approver.Decide(ctx, undecided(obj))
	switch {
	case err != nil:
		page.Row("decision", "unknown: "+err.Error())
	case decision.Reason == "InventoryUnavailable" || decision.Reason == "InventoryPending":
		page.Row("decision", "the content keeps the rules; only the manager knows what belongs to the node")
	default:
		writeResult(page, decision.Result)
		page.Row("assumes", "that the requester has every permission")
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
