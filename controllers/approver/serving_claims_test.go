package approver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// askedOf is a source that notes of whom it is asked.
type askedOf struct {
	entries map[string]*inventory.Entry
	broken  string // the node of which it can't say anything
	asked   []string
}

func (*askedOf) Name() string { return "asked" }

func (c *askedOf) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	c.asked = append(c.asked, node)
	if node == c.broken {
		return nil, errors.New("claimed by two")
	}
	return c.entries[node], nil
}

// created is a Node of that name that was created at a second.
func created(name string, second int64) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)}}
}

// contestOf is about a request of node a, created at second 2, which a source of that rank knows and asks for names that
// all of holders report.
func contestOf(source *askedOf, rank int, holders []corev1.Node, names []inventory.SAN) (contest, []sanFacts, *int) {
	req, _ := serving()
	node, listed := created("a", 2), new(int)
	c := contest{
		sources: inventory.Inventory{source, &askedOf{}}, req: req, node: &node, known: map[string]inventory.Found{},
		found: inventory.Found{Entry: &inventory.Entry{SANs: names}, Rank: rank},
		holders: func(context.Context, inventory.SAN) ([]corev1.Node, error) {
			*listed++
			return holders, nil
		},
	}
	var facts []sanFacts
	for _, san := range names {
		facts = append(facts, sanFacts{san: san})
	}
	return c, facts, listed
}

func manySANs(count int) []inventory.SAN {
	var all []inventory.SAN
	for i := range count {
		all = append(all, inventory.ParseSAN(fmt.Sprintf("10.1.%d.%d", i/256, i%256)))
	}
	return all
}

// A source may be a server far away: it is asked about no node twice, however many names are shared with it.
func TestRivalsAreLookedUpOnce(t *testing.T) {
	t.Parallel()
	source := &askedOf{}
	c, facts, _ := contestOf(source, 1, []corev1.Node{created("b", 3), created("c", 1)}, manySANs(500))
	if err := c.weigh(t.Context(), facts); err != nil || !slices.Equal(source.asked, []string{"b", "c"}) {
		t.Errorf("%v, asked for %d nodes: %.10q", err, len(source.asked), source.asked)
	}
}

// What is lost already is not weighed on.
func TestWeighingEndsAtTheFirstContested(t *testing.T) {
	t.Parallel()
	names := manySANs(500)
	source := &askedOf{entries: map[string]*inventory.Entry{"b": {SANs: names}}}
	c, facts, listed := contestOf(source, 0, []corev1.Node{created("b", 1)}, names)
	if err := c.weigh(t.Context(), facts); err != nil || facts[0].contested != "Node b" || *listed != 1 {
		t.Errorf("%v, %+v, looked for the holders of %d names", err, facts[0], *listed)
	}
}

// A node may report what others have, and it may be that nobody can say what it is. Who has the better claim anyway does
// not wait for that.
func TestWeakRivalsAreNotLookedUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rank    int
		rival   corev1.Node
		unknown bool
	}{
		"a younger one":                         {rank: 0, rival: created("b", 3)},
		"one of the same second":                {rank: 0, rival: created("b", 2)},
		"an older one":                          {rank: 0, rival: created("b", 1), unknown: true},
		"one that a stronger source could know": {rank: 1, rival: created("b", 3), unknown: true},
	} {
		source := &askedOf{broken: "b"}
		c, facts, _ := contestOf(source, test.rank, []corev1.Node{test.rival}, manySANs(1))
		if err := c.weigh(t.Context(), facts); (err != nil) != test.unknown || (len(source.asked) > 0) != test.unknown {
			t.Errorf("%s: %v, asked for %q", name, err, source.asked)
		}
	}
}

// No request has more than so many nodes looked up.
func TestRivalsAreBounded(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1} {
		var holders []corev1.Node
		for i := range maxRivals + more {
			holders = append(holders, created(fmt.Sprintf("b-%03d", i), 1))
		}
		source := &askedOf{}
		c, facts, _ := contestOf(source, 0, holders, manySANs(3))
		err := c.weigh(t.Context(), facts)
		if (err != nil) != (more > 0) || err != nil && !strings.Contains(err.Error(), "more than 50 other Nodes") || len(source.asked) != maxRivals {
			t.Errorf("with %d more: %v, asked for %d nodes", more, err, len(source.asked))
		}
	}
}
