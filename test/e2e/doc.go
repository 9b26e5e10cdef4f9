// Package e2e holds the end-to-end tests. They have the build tag e2e. Without it, this file keeps the package known to
// go vet.
package e2e
