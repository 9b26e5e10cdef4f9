package main

import (
	"context"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

const servingHeader = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
`

// byNodes uses what Nodes report of themselves.
const byNodes = servingHeader + `approval:
  kubeletServing: {enabled: true, reserved: []}
  inventory: {sources: [{node: {}}]}
`

// byMachines uses Machines of Cluster API before Nodes.
const byMachines = servingHeader + `approval:
  kubeletServing: {enabled: true, reserved: []}
  inventory:
    sources:
    - machine:
        group: cluster.x-k8s.io
        kind: Machine
        nodeRefPath: .status.nodeRef.name
        addressesPath: .status.addresses
        namePath: .spec.infrastructureRef.name
    - node: {}
`

func seedNodes(count int) func(context.Context, *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error { return l.SeedNodes(ctx, count) }
}

func seedMachines(count int) func(context.Context, *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error {
		if err := l.SeedNodes(ctx, count); err != nil {
			return err
		}
		return l.SeedMachines(ctx, count)
	}
}

// serve has each node request a serving certificate at once.
func serve(nodes int, config string) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			requests, err := l.Serving(nodes)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s.Configured(config), atOnce(ctx, l, requests))
		}
	}
}
