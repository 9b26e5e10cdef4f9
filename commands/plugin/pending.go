package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// waiting is a request that waits. It holds no more than is printed, because there may be 100,000 of them.
type waiting struct {
	Name      string    `json:"name"`
	Node      string    `json:"node,omitempty"`
	Signer    string    `json:"signer"`
	Requester string    `json:"requester"`
	WaitsFor  string    `json:"waitsFor"`
	Since     time.Time `json:"since"`
	// Could says what a client with the subject could do, if it is one of the cluster's own.
	Could string `json:"could,omitempty"`
	// Said is the newest Event in the name of the controller in charge.
	Said *statement `json:"said,omitempty"`

	uid types.UID
	by  string
}

// pendingCommand returns the command that lists the requests that wait.
func pendingCommand(connect connector) *cobra.Command {
	var signer string
	cmd := &cobra.Command{
		Use:   "pending [--signer NAME]",
		Short: "List the requests that wait for approval or for a certificate",
		Long: `pending lists the requests that wait for approval or for a certificate, the oldest first, with the reason of
the last Event about each in the name of the manager. It changes nothing.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&signer, "signer", "", "only requests for the signer with this `name`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, _ []string) error {
		rows, err := c.pending(cmd.Context(), signer)
		if err != nil {
			return err
		}
		if err := c.addEvents(cmd.Context(), rows); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Warning: the reasons are unknown: %v\n", err)
		}
		if len(rows) == 0 && !*asJSON {
			_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No request waits.")
			return err
		}
		return c.write(cmd.OutOrStdout(), *asJSON, rows, func(p *page) {
			table := [][]string{{"NAME", "NODE", "SIGNER", "REQUESTER", "WAITS FOR", "SINCE", "SAID IN AN EVENT", "COULD DO"}}
			for _, row := range rows {
				said, since := "", duration.HumanDuration(p.now.Sub(row.Since))
				if row.Said != nil {
					said = cell(row.Said.Reason) + " " + p.age(row.Said.At)
				}
				table = append(table, []string{cell(row.Name), cell(row.Node), cell(row.Signer), cell(row.Requester), row.WaitsFor, since, said, row.Could})
			}
			p.table(table)
		})
	})
	return cmd
}

// pending returns the requests that wait, the oldest first.
func (c *cluster) pending(ctx context.Context, signer string) ([]waiting, error) {
	rows := []waiting{} // never null
	options := metav1.ListOptions{}
	if signer != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.signerName", signer).String()
	}
	err := c.requests(ctx, options, func(obj *certificatesv1.CertificateSigningRequest) {
		state := csr.StateOf(obj)
		by := inCharge(state)
		if by == "" || obj.DeletionTimestamp != nil {
			return
		}
		row := waiting{
			Name: csr.ShortenTo(obj.Name, csr.MaxName), Signer: csr.Shorten(obj.Spec.SignerName),
			Requester: csr.Shorten(obj.Spec.Username), WaitsFor: "approval", Since: obj.CreationTimestamp.UTC(), uid: obj.UID, by: by,
		}
		if req, err := csr.Parse(obj); err == nil {
			row.Node, row.Could = csr.Shorten(req.NodeName()), powerOf(req)
		}
		if state == csr.Approved {
			row.WaitsFor = "a certificate"
			if at := csr.ApprovedAt(obj); !at.IsZero() {
				row.Since = at.UTC()
			}
		}
		rows = append(rows, row)
	})
	slices.SortFunc(rows, func(a, b waiting) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name)) })
	return rows, err
}

// addEvents sets the newest Event about each row. It reads all Events about requests, because one call for
// each request would be many more.
func (c *cluster) addEvents(ctx context.Context, rows []waiting) error {
	if len(rows) == 0 {
		return nil
	}
	byUID := make(map[types.UID]*waiting, len(rows))
	for i := range rows {
		byUID[rows[i].uid] = &rows[i]
	}
	return c.events(ctx, metav1.NamespaceDefault, "involvedObject.kind=CertificateSigningRequest", func(about corev1.ObjectReference, said statement) {
		if row := byUID[about.UID]; row != nil && said.By == row.by && (row.Said == nil || !said.At.Before(row.Said.At)) {
			row.Said = &said
		}
	})
}
