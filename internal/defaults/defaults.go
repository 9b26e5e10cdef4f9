// Package defaults holds the defaults that the configuration and the controllers share.
package defaults

// The workers of each controller. They are more than kube-controller-manager has
// (cmd/kube-controller-manager/app/certificates.go). Its 5 workers mostly wait for the API server while many nodes join, and
// its one cleaner waits for a deletion that hangs.
const (
	ApproverWorkers = 50
	SignerWorkers   = 20
	CleanerWorkers  = 5
)

// DeletesPerSecond bounds the rate of deletions, so that a restart with a backlog does not flood the API server.
const DeletesPerSecond = 100
