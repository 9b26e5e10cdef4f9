package approver

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// How often all Nodes are compared, and how many of those that are left out get an Event.
const (
	compareEvery = 10 * time.Second
	mostReported = 20
)

// liars reports the Nodes that are left out of the comparison, whether or not they ask for anything.
type liars struct {
	inventory *Inventory
	reporter  *report.Reporter
	log       logr.Logger

	told map[string]bool // of the last comparison
}

// Start compares all Nodes again and again until ctx ends. Only the leader does.
func (l *liars) Start(ctx context.Context) error {
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	defer nodesLeftOut.Set(0) // the next leader counts them
	for {
		l.compare(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

var _ manager.Runnable = &liars{}

// compare counts the Nodes that are left out, and reports those that were not before.
func (l *liars) compare(ctx context.Context) {
	found, err := l.inventory.leftOut(ctx)
	if err != nil {
		return // requests that need the same say why
	}
	nodesLeftOut.Set(float64(len(found)))
	now := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		now[name] = true
		if l.told[name] || len(now) > mostReported {
			continue
		}
		message := "its own word about its names and addresses is left out of the comparison with other Nodes: " +
			found[name].String() + "; find out what runs there"
		l.log.Error(nil, "A Node reports what belongs to others", "node", name, "message", message)
		if node, err := l.inventory.cluster.Node(ctx, name); err == nil && node != nil {
			about := &corev1.Node{}
			about.Name, about.UID = node.Name, node.UID
			l.reporter.Object(about, corev1.EventTypeWarning, "Approve", "SANContested", message)
		}
	}
	l.told = now
}

// leftOut returns the Nodes that are left out of the comparison. Sources that may be slow to answer are not asked.
func (i *Inventory) leftOut(ctx context.Context) (map[string]*inventory.LeftOut, error) {
	nodes, err := i.cluster.Nodes()
	if err != nil {
		return nil, err
	}
	var quick inventory.Inventory
	for n, source := range i.sources {
		if i.sources[n : n+1].NamesOwners(1) {
			quick = append(quick, source)
		}
	}
	known, many := map[string]inventory.Found{}, map[inventory.SAN][]string{}
	ownership := &inventory.Ownership{
		Reported: i.cluster.Reported,
		Holders: func(san inventory.SAN) ([]string, error) {
			if few, found := many[san]; found { // all Nodes may report one address
				return few, nil
			}
			holders, err := i.cluster.Holders(san)
			if len(holders) > 2 {
				holders = slices.Clone(holders[:3])
				many[san] = holders
			}
			return holders, err
		},
		Claim: func(node string, san inventory.SAN) (inventory.Claim, error) {
			found, asked := known[node]
			if !asked {
				var err error
				if found, err = quick.Claimant(ctx, node, len(quick), nil); err != nil {
					return inventory.Claim{}, err
				}
				known[node] = found
			}
			return found.Claim(san), nil
		},
	}
	found := map[string]*inventory.LeftOut{}
	for _, node := range nodes {
		if out, err := ownership.LeftOut(node); err == nil && out != nil {
			found[node] = out
		}
	}
	return found, ctx.Err()
}
