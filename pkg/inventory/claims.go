package inventory

import (
	"fmt"
	"maps"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// MaxRivals bounds how many other Nodes are compared with one Node, each in sources that may be slow to answer.
const MaxRivals = 50

// Strength is how firmly a source assigns a name or an address to a node.
type Strength int

// The strengths, the weakest first.
const (
	// NoClaim means that the source does not assign the value to the node.
	NoClaim Strength = iota
	// OwnWord means that the node's own report decides: its source assigns a range to the node, or trusts all that
	// its Node reports.
	OwnWord
	// ForSeveral means that the source lists this exact value for several nodes: each of them may have it.
	ForSeveral
	// Alone means that the source lists this exact value for this node alone.
	Alone
)

// Claim is the right of a node to a name or an address.
type Claim struct {
	Strength Strength
	Rank     int // of the source that assigns it: lower is stronger
}

// Claim returns the claim of f's node to value.
func (f Found) Claim(value san.SAN) Claim {
	claim := Claim{Rank: f.Rank}
	switch {
	case f.Entry == nil:
	case f.OwnWord:
		claim.Strength = OwnWord // Claim is only called for Nodes that report value
	case !f.Owns(value):
	case !f.lists(value):
		claim.Strength = OwnWord
	case f.Shared:
		claim.Strength = ForSeveral
	default:
		claim.Strength = Alone
	}
	return claim
}

// result is the result of comparing one claim with another.
type result int

const (
	unopposed result = iota // the other claim is no obstacle
	tied                    // neither of the two nodes may have the value
	weaker                  // the other node has the stronger claim
)

// against compares c with the claim of another Node that reports the same value. Only the sources count. Age and
// order do not, because a node that wants the value could choose to be older, or to be first.
func (c Claim) against(other Claim) result {
	switch {
	case other.Strength == NoClaim:
		return unopposed
	case c.Strength == NoClaim:
		return weaker
	case c.Strength == ForSeveral && other.Strength != Alone:
		return unopposed // an administrator listed this exact value for several nodes
	case other.Rank < c.Rank, other.Rank == c.Rank && other.Strength > c.Strength:
		return weaker
	case other == c:
		return tied
	}
	return unopposed
}

// Ownership decides which node may have a name or an address that several Nodes report. Its answers depend only on
// the results of its functions: not on order, age or earlier answers. It caches results, so create a new Ownership
// for each decision. It is not safe for concurrent use.
type Ownership struct {
	// Holders returns the names of the Nodes that report value, in any order.
	Holders func(value san.SAN) ([]string, error)
	// Reported returns the names and addresses that a Node reports. An error means that they are unknown.
	Reported func(node string) ([]san.SAN, error)
	// Claim returns the claim of a Node that reports value, or of the node that requests it.
	Claim func(node string, value san.SAN) (Claim, error)

	pairs map[string]map[string][]san.SAN
	out   map[string]*LeftOut
}

// Contest says why a node may not have a name or an address. The zero value means that it may.
type Contest struct {
	// Better is the Node that has the stronger claim.
	Better string
	// Twice is another Node. The same source assigns the value to it alone, too.
	Twice string
	// Equal are other Nodes with an equal claim, in order, so that none of them gets the value. If there are many,
	// Equal holds only the first. Reporters is the number of Nodes that report the value.
	Equal     []string
	Reporters int
	// LeftOut says why the requesting node is left out of the comparison.
	LeftOut *LeftOut
}

// Contested reports whether the node has to wait.
func (c Contest) Contested() bool {
	return c.Better != "" || c.Twice != "" || len(c.Equal) > 0 || c.LeftOut != nil
}

// LeftOut is the evidence that a Node reports values that belong to others. The Node shares two values, each with
// exactly one other Node, and those two Nodes share nothing. Or it shares values with more other Nodes than are
// compared.
type LeftOut struct {
	Nodes [2]string
	SANs  [2]san.SAN
	More  int // the number of other Nodes, if they are too many
}

func (l LeftOut) String() string {
	if l.More > 0 {
		return fmt.Sprintf("it reports names and addresses of %d other Nodes", l.More)
	}
	return fmt.Sprintf("it reports %s, as Node %s does, and %s, as Node %s does",
		l.SANs[0], l.Nodes[0], l.SANs[1], l.Nodes[1])
}

// Contest returns why another Node prevents node from having value, or a zero Contest.
func (o *Ownership) Contest(node string, value san.SAN) (Contest, error) {
	ours, err := o.Claim(node, value)
	if err != nil {
		return Contest{}, err
	}
	reporters, err := o.Holders(value)
	if err != nil {
		return Contest{}, err
	}
	if ours.Strength == OwnWord {
		if out, err := o.LeftOut(node); err != nil || out != nil {
			return Contest{LeftOut: out}, err
		}
		if len(reporters) > MaxRivals { // no Node can have it alone
			return Contest{Equal: []string{slices.Min(others(reporters, node))}, Reporters: len(reporters)}, nil
		}
	}
	if len(reporters) > MaxRivals+1 {
		return Contest{}, fmt.Errorf("more than %d other Nodes report the requested name or address", MaxRivals)
	}
	return o.compare(ours, value, others(reporters, node))
}

// compare compares ours with the claims of the other Nodes that report value.
func (o *Ownership) compare(ours Claim, value san.SAN, reporters []string) (Contest, error) {
	contest := Contest{Reporters: len(reporters) + 1}
	for _, other := range slices.Sorted(slices.Values(reporters)) {
		theirs, err := o.Claim(other, value)
		if err != nil {
			return Contest{}, err
		}
		switch result := ours.against(theirs); {
		case result == weaker:
			return Contest{Better: other}, nil
		case result == unopposed:
		case ours.Strength == Alone:
			return Contest{Twice: other}, nil
		default:
			out, err := o.LeftOut(other)
			if err != nil {
				return Contest{}, err
			}
			if out == nil || value == san.Parse(other) { // a Node keeps its own name, whatever others report
				contest.Equal = append(contest.Equal, other)
			}
		}
	}
	return contest, nil
}

func others(nodes []string, node string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(each string) bool { return each == node })
}

// LeftOut returns why node is left out of the comparison, or nil. A Node collides with another Node if exactly these
// two report a value and neither of them has it for certain. A Node that collides with two Nodes that do not collide
// with each other is left out. If a single node lies, it is that Node, so it can block at most one other node. Values
// that three or more Nodes report are no evidence, because they may be shared honestly.
func (o *Ownership) LeftOut(node string) (*LeftOut, error) {
	if out, known := o.out[node]; known {
		return out, nil
	}
	out, err := o.leftOut(node)
	if err != nil {
		return nil, err
	}
	if o.out == nil {
		o.out = map[string]*LeftOut{}
	}
	o.out[node] = out
	return out, nil
}

func (o *Ownership) leftOut(node string) (*LeftOut, error) {
	shared, err := o.sharedBy(node)
	if err != nil {
		return nil, err
	}
	if len(shared) > MaxRivals {
		return &LeftOut{More: len(shared)}, nil
	}
	var rivals []string
	var values []san.SAN
	var failed error // is returned only if the other Nodes are no evidence
	for _, other := range slices.Sorted(maps.Keys(shared)) {
		value, found, err := o.challenge(node, other, shared[other])
		if err != nil {
			failed = err
		}
		if !found {
			continue
		}
		for i, rival := range rivals {
			collide, err := o.collide(rival, other)
			if err != nil {
				failed = err
			} else if !collide {
				return &LeftOut{Nodes: [2]string{rival, other}, SANs: [2]san.SAN{values[i], value}}, nil
			}
		}
		rivals, values = append(rivals, other), append(values, value)
	}
	return nil, failed
}

// challenge returns a value that node has by its own report alone, and to which other has an equal or stronger claim.
func (o *Ownership) challenge(node, other string, shared []san.SAN) (san.SAN, bool, error) {
	for _, value := range shared {
		ours, err := o.Claim(node, value)
		if err != nil {
			return san.SAN{}, false, err
		}
		theirs, err := o.Claim(other, value)
		if err != nil {
			return san.SAN{}, false, err
		}
		if ours.Strength == OwnWord && ours.against(theirs) != unopposed {
			return value, true, nil
		}
	}
	return san.SAN{}, false, nil
}

// collide reports whether two Nodes contest a value that no third Node reports.
func (o *Ownership) collide(a, b string) (bool, error) {
	shared, err := o.sharedBy(a)
	if err != nil {
		return false, err
	}
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		if _, found, err := o.challenge(pair[0], pair[1], shared[b]); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// sharedBy returns the values that node shares with exactly one other Node, by the name of that Node.
func (o *Ownership) sharedBy(node string) (map[string][]san.SAN, error) {
	if pairs, known := o.pairs[node]; known {
		return pairs, nil
	}
	reported, err := o.Reported(node)
	if err != nil {
		return nil, err
	}
	pairs := map[string][]san.SAN{}
	for _, value := range reported {
		reporters, err := o.Holders(value)
		if err != nil {
			return nil, err
		}
		if len(reporters) != 2 || !slices.Contains(reporters, node) {
			continue
		}
		other := others(reporters, node)[0]
		pairs[other] = append(pairs[other], value)
	}
	if o.pairs == nil {
		o.pairs = map[string]map[string][]san.SAN{}
	}
	o.pairs[node] = pairs
	return pairs, nil
}
