package main

import (
	"context"
	"errors"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// joinRate is the rate of others' requests, in requests/s.
const joinRate = 20

var (
	hostile = lab.Neighbour{Signer: certificatesv1.KubeAPIServerClientKubeletSignerName}
	foreign = lab.Neighbour{Signer: "example.com/foreign"}
	large   = lab.Neighbour{Signer: certificatesv1.KubeAPIServerClientKubeletSignerName, PayloadBytes: 1_000_000}
)

// joinBeside measures how long others wait while pending requests of n exist.
func joinBeside(s lab.Subject, pending int, n lab.Neighbour, duration time.Duration) round {
	return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
		requests, err := l.Pending(pending, n)
		if err != nil {
			return report.Round{}, err
		}
		if err := l.Seed(ctx, requests); err != nil {
			return report.Round{}, err
		}
		return trickle(joinRate, duration)(s)(ctx, l)
	}
}

// joinBesideLarge also measures the memory that the pending requests take.
func joinBesideLarge(pending int, duration time.Duration) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			idle, err := idlePeak(ctx, l, s)
			if err != nil {
				return report.Round{}, err
			}
			measured, err := joinBeside(s, pending, large, duration)(ctx, l)
			if err != nil {
				return report.Round{}, err
			}
			measured.Values[report.AboveIdle] = measured.Values[report.Peak] - idle
			return measured, nil
		}
	}
}

// idlePeak returns the peak memory of a subject that has issued one certificate.
func idlePeak(ctx context.Context, l *lab.Lab, s lab.Subject) (peak float64, err error) {
	r, err := l.Start(ctx, s)
	if err != nil {
		return 0, err
	}
	peak, err = r.PeakMemory()
	return peak, errors.Join(err, r.Stop(), l.Clear(ctx))
}
