package main

import (
	"fmt"
	"slices"
	"time"
)

// result holds the rates of both programs, round by round.
type result struct {
	title     string
	ours, kcm []float64
}

// ratio returns a value above 1 if ours is faster.
func (r *result) ratio() float64 { return median(r.ours) / median(r.kcm) }

// noise returns the larger of the half spreads of both programs.
func (r *result) noise() float64 { return max(halfSpread(r.ours), halfSpread(r.kcm)) }

func (r *result) String() string {
	return fmt.Sprintf("%s: median ours %.0f/s (±%.0f%%), kube-controller-manager %.0f/s (±%.0f%%), ratio %.2f",
		r.title, median(r.ours), 100*halfSpread(r.ours), median(r.kcm), 100*halfSpread(r.kcm), r.ratio())
}

// verdict returns an error if ours is slower by more than the noise.
func (r *result) verdict() error {
	if r.ratio()+r.noise() < 1 {
		return fmt.Errorf("ours is slower by more than the noise: ratio %.2f and noise %.2f make less than 1, %s", r.ratio(), r.noise(), r.title)
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

// halfSpread returns half of the spread, as a share of the median.
func halfSpread(values []float64) float64 {
	return (slices.Max(values) - slices.Min(values)) / 2 / median(values)
}

// percentile returns the smallest value that the given share of values does not exceed.
func percentile(values []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
