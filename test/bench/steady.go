package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// steady measures how long each request takes with ours at a constant rate, from just before its creation to its
// certificate.
func (b *bench) steady(ctx context.Context) error {
	return b.with(ctx, b.ours, func(ctx context.Context) error {
		count := int(b.steadyFor.Seconds() * float64(b.steadyRate))
		prefix := b.prefix()
		requests, err := newRequests(prefix, count)
		if err != nil {
			return err
		}
		created := make([]time.Time, count)
		errs := make([]error, count)
		var done sync.WaitGroup
		ticker := time.NewTicker(time.Second / time.Duration(b.steadyRate))
		defer ticker.Stop()
		for i, request := range requests {
			<-ticker.C
			done.Go(func() {
				created[i] = time.Now()
				_, errs[i] = b.node.CertificatesV1().CertificateSigningRequests().Create(ctx, request, metav1.CreateOptions{})
			})
		}
		done.Wait()
		for _, err := range errs {
			if err != nil {
				return fmt.Errorf("create request: %w", err)
			}
		}
		issued, err := b.tracker.wait(ctx, prefix, count)
		if err != nil {
			return err
		}
		took := make([]time.Duration, count)
		for i, request := range requests {
			took[i] = issued[request.Name].Sub(created[i])
		}
		fmt.Printf("steady %d/s for %s, ours: from creation to certificate p50 %s, p99 %s\n", b.steadyRate, b.steadyFor,
			percentile(took, 0.50).Round(100*time.Microsecond), percentile(took, 0.99).Round(100*time.Microsecond))
		return nil
	})
}
