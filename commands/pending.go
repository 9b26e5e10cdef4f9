package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

const (
	// pendingTimeout bounds one listing.
	pendingTimeout = 2 * time.Minute
	// pendingEvery is the pause between two listings with --watch.
	pendingEvery = 5 * time.Second
)

// pendingOptions are the flags of pending.
type pendingOptions struct {
	byNode  bool
	signer  string
	format  *string
	watch   bool
	timeout time.Duration
}

// NewPendingCommand returns the command that lists the requests that wait.
func NewPendingCommand(source Source) *cobra.Command {
	o := &pendingOptions{}
	cmd := &cobra.Command{
		Use:   "pending [--by-node] [--signer NAME]",
		Short: "List the requests that wait for approval or for a certificate",
		Long: `pending lists the requests that wait for approval or for a certificate, the oldest first, with the reason. It
changes nothing. The reason is that of the last Event of the manager about the request. A request without such an Event is
checked against the rules now.`,
		Args: MaxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError(cmd, err)
			}
			return o.run(cmd, source)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&o.byNode, "by-node", false, "one row for each node, with the reason of its newest request")
	cmd.Flags().StringVar(&o.signer, "signer", "", "only requests for the signer with this `name`")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "list again every 5s, and print the rows that are new or "+
		"have changed")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long --watch goes on at most")
	o.format = outputFlag(cmd, "table")
	source.Bind(cmd, Configuration)
	return cmd
}

// check returns what is wrong with the flags.
func (o *pendingOptions) check() error {
	err := checkOutput(*o.format)
	if o.watch && isFields(*o.format) {
		err = errors.Join(err, errors.New("--watch prints a table: leave out -o"))
	}
	if o.watch && o.timeout <= 0 {
		err = errors.Join(err, errors.New("--timeout must be positive"))
	}
	return err
}

func (o *pendingOptions) run(cmd *cobra.Command, source Source) error {
	bound := pendingTimeout
	if o.watch {
		bound += o.timeout
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), bound)
	defer cancel()
	e, server, _, err := newExplainer(ctx, cmd, source)
	if err != nil {
		return err
	}
	defer e.Close()
	l := &lister{
		reader: server.api, explainer: e, clock: server.clock, byNode: o.byNode, signer: o.signer,
		program: programName(cmd), aside: cmd.ErrOrStderr(),
	}
	if o.watch {
		return o.follow(ctx, l, cmd.OutOrStdout())
	}
	rows, err := l.list(ctx)
	if err != nil {
		return err
	}
	return o.write(cmd.OutOrStdout(), rows, l)
}

// write writes rows in the format of o.
func (o *pendingOptions) write(out io.Writer, rows []waiting, l *lister) error {
	now := l.clock.Now()
	switch {
	case isFields(*o.format) && o.byNode:
		return writeFields(out, *o.format, groupByNode(rows))
	case isFields(*o.format):
		return writeFields(out, *o.format, slices.Concat([]waiting{}, rows)) // an empty list, not null
	case len(rows) == 0:
		_, err := fmt.Fprintln(l.aside, "No request waits.")
		return err
	case o.byNode:
		return writeTable(out, nodeTable(groupByNode(rows), now))
	default:
		return writeTable(out, append([][]string{pendingHeader}, pendingTable(rows, now)...))
	}
}

var pendingHeader = []string{"NAME", "NODE", "SIGNER", "REQUESTER", "WAITS FOR", "SINCE", "REASON"}

func pendingTable(rows []waiting, now time.Time) [][]string {
	var table [][]string
	for _, row := range rows {
		table = append(table, []string{
			check.Word(row.Name), orDash(row.Node), row.Signer, orDash(row.Requester), row.WaitsFor,
			duration.HumanDuration(now.Sub(row.Since)), row.reasonText(),
		})
	}
	return table
}

func nodeTable(groups []nodeGroup, now time.Time) [][]string {
	table := [][]string{{"NODE", "REQUESTS", "OLDEST", "NEWEST", "REASON OF THE NEWEST"}}
	for _, group := range groups {
		table = append(table, []string{
			orDash(group.Node), fmt.Sprint(group.Requests), duration.HumanDuration(now.Sub(group.Oldest)),
			duration.HumanDuration(now.Sub(group.Newest.Since)), group.Newest.reasonText(),
		})
	}
	return table
}

// orDash returns text that a requester chose as one word, or a dash.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return check.Word(text)
}

// follow lists again and again, and writes the rows that are new or have changed. It ends after --timeout, with ctx, or
// if the first list fails.
func (o *pendingOptions) follow(ctx context.Context, l *lister, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if _, err := fmt.Fprintf(l.aside, "Lists the requests that wait every %s, for at most %s (--timeout).\n",
		pendingEvery, o.timeout); err != nil {
		return err
	}
	printed := map[string]string{}
	table := [][]string{o.header()}
	for first := true; ctx.Err() == nil; first = false {
		rows, err := l.list(ctx)
		switch {
		case err == nil:
			if err := writeTable(out, append(table, o.changes(rows, printed, l.clock.Now())...)); err != nil {
				return err
			}
			table = nil
		case errors.Is(ctx.Err(), context.Canceled):
			return nil // the user has ended it
		case first:
			return err
		case ctx.Err() == nil:
			_, _ = fmt.Fprintf(l.aside, "Warning: %s\n", oneLine(err.Error()))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pendingEvery):
		}
	}
	return nil
}

func (o *pendingOptions) header() []string {
	if o.byNode {
		return nodeTable(nil, time.Time{})[0]
	}
	return pendingHeader
}

// changes returns the lines of rows that printed does not hold, and a line for each row that does not wait any more. It
// updates printed.
func (o *pendingOptions) changes(rows []waiting, printed map[string]string, now time.Time) [][]string {
	lines := pendingTable(rows, now)
	state := []int{4, 6} // what it waits for and why
	if o.byNode {
		lines = nodeTable(groupByNode(rows), now)[1:]
		state = []int{1, 4} // the number of requests and the reason
	}
	var changed [][]string
	seen := map[string]bool{}
	for _, line := range lines {
		key, value := line[0], line[state[0]]+" "+line[state[1]]
		seen[key] = true
		if printed[key] != value {
			printed[key] = value
			changed = append(changed, line)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(printed)) {
		if !seen[key] {
			delete(printed, key)
			gone := slices.Repeat([]string{""}, len(o.header()))
			gone[0], gone[len(gone)-1] = key, "waits no more"
			changed = append(changed, gone)
		}
	}
	return changed
}
