package main

import (
	"fmt"
	"slices"
	"time"
)

// result holds the rates of both, round by round.
type result struct {
	title     string
	ours, kcm []float64
}

// ratio is above 1 when ours is the faster one.
func (r *result) ratio() float64 { return median(r.ours) / median(r.kcm) }

func (r *result) String() string {
	return fmt.Sprintf("%s: median ours %.0f/s (±%.0f%%), kube-controller-manager %.0f/s (±%.0f%%), ratio %.2f",
		r.title, median(r.ours), 100*noise(r.ours), median(r.kcm), 100*noise(r.kcm), r.ratio())
}

// verdict is an error when ours is the slower one.
func (r *result) verdict() error {
	if r.ratio() < 1 {
		return fmt.Errorf("ours is slower: %s", r)
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// noise is half of the spread, as a share of the median.
func noise(values []float64) float64 {
	return (slices.Max(values) - slices.Min(values)) / 2 / median(values)
}

// percentile returns the smallest of values that share of them do not exceed.
func percentile(values []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
