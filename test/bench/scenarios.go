package main

import (
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
)

// scenarios returns all scenarios. A quick form shows that a scenario works and gives a first impression; only the full
// form has rounds enough to compare.
func scenarios() []scenario {
	return []scenario{
		burstScenario(), trickleScenario(), costScenario(), backlogScenario(), renewalScenario(), hostileScenario(),
		largeScenario(), cleaningScenario(), failoverScenario(), servingScenario(), rulesScenario(),
	}
}

// compared are all subjects.
var compared = []lab.Subject{lab.Ours, lab.Base, lab.Shipped, lab.Unlimited, lab.Floor}

// unlimited are the subjects that no client limit slows down.
var unlimited = []lab.Subject{lab.Ours, lab.Base, lab.Unlimited, lab.Floor}

// managers are the subjects that judge requests, without client limits.
var managers = []lab.Subject{lab.Ours, lab.Base, lab.Unlimited}

// own are the revisions of ours.
var own = []lab.Subject{lab.Ours, lab.Base}

func title(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// burstScenario has many nodes that join at once.
func burstScenario() scenario {
	of := func(rounds, requests, identities int, subjects ...lab.Subject) experiment {
		by := "one identity"
		if identities > 1 {
			by = title("%d identities", identities)
		}
		return experiment{
			name: title("%d requests of %s", requests, by), rounds: rounds,
			entries: each(burst(requests, identities), subjects...),
		}
	}
	return scenario{
		name:  "burst",
		quick: []experiment{of(1, 1500, 1, compared...), of(1, 1500, 1500, unlimited...)},
		full: []experiment{
			of(5, 1500, 1, compared...), of(5, 10000, 1, unlimited...),
			of(5, 1500, 1500, unlimited...), of(5, 10000, 1500, unlimited...),
		},
	}
}

// trickleScenario has nodes that join at a constant rate.
func trickleScenario() scenario {
	of := func(rounds, rate int, duration time.Duration, subjects ...lab.Subject) experiment {
		return experiment{
			name: title("%d requests/s", rate), rounds: rounds, entries: each(trickle(rate, duration), subjects...),
		}
	}
	return scenario{
		name:  "trickle",
		quick: []experiment{of(1, 5, 5*time.Second, compared...), of(1, 50, 5*time.Second, unlimited...)},
		full: []experiment{
			of(5, 5, time.Minute, compared...), of(5, 20, time.Minute, unlimited...), of(5, 50, time.Minute, unlimited...),
		},
	}
}

// costScenario shows what a certificate costs if the machine is not busy.
func costScenario() scenario {
	of := func(rounds int, duration time.Duration) []experiment {
		return []experiment{{name: "100 requests/s", rounds: rounds, entries: each(trickle(100, duration), unlimited...)}}
	}
	return scenario{name: "cost", quick: of(1, 5*time.Second), full: of(5, 20*time.Second)}
}

// backlogScenario has requests that exist before the manager starts.
func backlogScenario() scenario {
	pending := func(rounds, requests int) experiment {
		return experiment{
			name: title("%d pending requests", requests), rounds: rounds, entries: each(backlog(requests), unlimited...),
		}
	}
	old := func(rounds, requests int) experiment {
		return experiment{
			name: title("%d old requests of all states", requests), rounds: rounds, prepare: seedOld(requests),
			entries: append(each(startAmongOld, unlimited...), entry{"ours, standby", lab.Ours, standbyAmongOld(lab.Ours)}),
		}
	}
	return scenario{
		name:  "backlog",
		quick: []experiment{pending(1, 1000), old(1, 10000)},
		full:  []experiment{pending(5, 10000), pending(3, 100000), old(3, 10000), old(3, 100000), old(2, 500000)},
	}
}

// renewalScenario has nodes that renew their certificates at once, with CAs of several key algorithms.
func renewalScenario() scenario {
	of := func(rounds, nodes int) []experiment {
		var all []experiment
		for _, algorithm := range []string{lab.RSACA, lab.DefaultCA, lab.Ed25519CA} {
			all = append(all, experiment{
				name: title("%d nodes, %s CA", nodes, algorithm), rounds: rounds, prepare: makeCA(algorithm),
				entries: each(renewal(nodes, algorithm), managers...),
			})
		}
		return all
	}
	return scenario{name: "renewal", quick: of(1, 300), full: of(5, 2000)}
}

// hostileScenario has a user whose requests stay pending, and others who join meanwhile. The same number of requests
// of a signer that no manager serves is the measure.
func hostileScenario() scenario {
	of := func(rounds, pending int, duration time.Duration) []experiment {
		var entries []entry
		for _, s := range managers {
			entries = append(entries,
				entry{s.Name + ", hostile requests", s, joinBeside(s, pending, hostile, duration)},
				entry{s.Name + ", foreign requests", s, joinBeside(s, pending, foreign, duration)})
		}
		return []experiment{{name: title("%d pending requests of one user", pending), rounds: rounds, entries: entries}}
	}
	return scenario{name: "hostile", quick: of(1, 2000, 5*time.Second), full: of(5, 100000, time.Minute)}
}

// largeScenario has pending requests of 1 MB.
func largeScenario() scenario {
	of := func(rounds, pending int, duration time.Duration) []experiment {
		return []experiment{{
			name: title("%d pending requests of 1 MB", pending), rounds: rounds,
			entries: each(joinBesideLarge(pending, duration), managers...),
		}}
	}
	return scenario{name: "large", quick: of(1, 100, 5*time.Second), full: of(3, 2000, time.Minute)}
}

// cleaningScenario has requests whose retention ends. kube-controller-manager looks once an hour, so how late it
// deletes is not measured.
func cleaningScenario() scenario {
	steady := func(rounds, rate int, duration time.Duration) experiment {
		return experiment{name: title("%d due/s", rate), rounds: rounds, entries: each(deleteWhenDue(rate, duration), own...)}
	}
	atOnce := func(rounds, due int, most time.Duration) experiment {
		return experiment{
			name: title("%d due at once", due), rounds: rounds,
			entries: append(each(deleteAtOnce(due, most), managers...),
				entry{"bare deletions", lab.Floor, deleteBare(due, most)}),
		}
	}
	return scenario{
		name:  "cleaning",
		quick: []experiment{steady(1, 50, 10*time.Second), atOnce(1, 2000, 20*time.Second)},
		full:  []experiment{steady(5, 50, time.Minute), atOnce(3, 10000, 5*time.Minute), atOnce(1, 500000, 5*time.Minute)},
	}
}

// failoverScenario has two replicas, and a leader that ends.
func failoverScenario() scenario {
	of := func(rounds int) []experiment {
		entries := []entry{
			{"leader stopped", lab.Ours, loseLeader(stopLeader)}, {"leader killed", lab.Ours, loseLeader(killLeader)},
		}
		return []experiment{{name: "12 requests/s", rounds: rounds, entries: entries}}
	}
	return scenario{name: "failover", quick: of(1), full: of(50)}
}

// servingScenario has nodes that request serving certificates. The manager compares each request with all Nodes and
// Machines.
func servingScenario() scenario {
	of := func(rounds, nodes int) []experiment {
		return []experiment{
			{
				name: title("%d Nodes", nodes), rounds: rounds, prepare: seedNodes(nodes),
				entries: each(serve(nodes, byNodes), own...),
			},
			{
				name: title("%d Nodes and Machines", nodes), rounds: rounds, prepare: seedMachines(nodes),
				entries: each(serve(nodes, byMachines), own...),
			},
		}
	}
	return scenario{name: "serving", quick: of(1, 300), full: of(3, 5000)}
}
