package report

import (
	"fmt"
	"strings"
)

// Keys of the metrics.
const (
	Rate          = "certificatesPerSecond"
	P50           = "p50Milliseconds"
	P99           = "p99Milliseconds"
	Longest       = "longestMilliseconds"
	CPU           = "cpuMillisecondsPerCertificate"
	Calls         = "callsPerCertificate"
	Allocated     = "allocatedKiBPerCertificate"
	FirstIssued   = "firstCertificateSeconds"
	Peak          = "peakMiB"
	Settled       = "settledMiB"
	LiveHeap      = "liveHeapMiB"
	AboveIdle     = "peakAboveIdleMiB"
	LateP50       = "lateP50Milliseconds"
	LateP99       = "lateP99Milliseconds"
	Deleted       = "deletedPerSecond"
	OthersIdleP99 = "othersIdleP99Milliseconds"
	OthersP99     = "othersP99Milliseconds"
)

// Metric describes the values of one key.
type Metric struct {
	Key      string `json:"key"`
	Title    string `json:"title"`
	Decimals int    `json:"decimals"`
}

// Metrics are all metrics, in the order of the columns.
var Metrics = []Metric{
	{Rate, "certificates/s", 0},
	{P50, "p50 ms", 1},
	{P99, "p99 ms", 1},
	{Longest, "longest ms", 0},
	{FirstIssued, "start to first certificate s", 2},
	{LateP50, "deletion after due time, p50 ms", 0},
	{LateP99, "deletion after due time, p99 ms", 0},
	{Deleted, "deletions/s", 0},
	{OthersIdleP99, "API calls of others before, p99 ms", 1},
	{OthersP99, "API calls of others, p99 ms", 1},
	{CPU, "own CPU ms/certificate", 2},
	{Calls, "API calls/certificate", 2},
	{Allocated, "allocated KiB/certificate", 0},
	{Peak, "peak memory MiB", 0},
	{AboveIdle, "peak above idle MiB", 0},
	{Settled, "settled memory MiB", 0},
	{LiveHeap, "live heap MiB", 1},
}

// String returns the measured values with their titles.
func (v Values) String() string {
	var all []string
	for _, metric := range Metrics {
		if value, measured := v[metric.Key]; measured {
			all = append(all, fmt.Sprintf("%s %.*f", metric.Title, metric.Decimals, value))
		}
	}
	return strings.Join(all, "; ")
}
