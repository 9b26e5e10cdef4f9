package main

import (
	"context"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// Conditions of approval rules. The second one makes the manager read the ServiceAccount of each requester.
const (
	byUser    = "request.names.all(n, n.endsWith('.svc')) && requester.username.startsWith('system:serviceaccount:default:')"
	byAccount = "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')"
)

// underRule creates all requests at once, which a rule with that condition approves.
func underRule(requests int, condition string) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			asked, err := l.UnderRule(s.AtMost(requests))
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s.Configured(l.Ruled(condition)), atOnce(ctx, l, asked))
		}
	}
}

// kubeletsBeside is burst of one identity, with the same configuration as underRule.
func kubeletsBeside(requests int) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			joins, err := l.Joins(s.AtMost(requests), 1)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s.Configured(l.Ruled(byUser)), atOnce(ctx, l, joins))
		}
	}
}

// rulesScenario has requests of one ServiceAccount that an approval rule approves, beside as many of kubelets.
func rulesScenario() scenario {
	of := func(rounds, requests int) []experiment {
		return []experiment{{
			name: title("%d requests of one identity", requests), rounds: rounds,
			prepare: func(ctx context.Context, l *lab.Lab) error { return l.SeedRule(ctx) },
			entries: []entry{
				{"ours, kubelets", lab.Ours, kubeletsBeside(requests)(lab.Ours)},
				{"ours, rule by user name", lab.Ours, underRule(requests, byUser)(lab.Ours)},
				{"ours, rule by ServiceAccount", lab.Ours, underRule(requests, byAccount)(lab.Ours)},
			},
		}}
	}
	return scenario{name: "rules", quick: of(1, 1500), full: of(5, 10000)}
}
