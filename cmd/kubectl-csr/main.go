// Command kubectl-csr is a kubectl plugin: kubectl csr explains and approves requests, checks what the manager depends
// on, and rotates CAs. It acts with the rights of its user. It reads the configuration of the manager from the
// ConfigMaps that the managers publish.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/csr-controller-manager/csr-controller-manager/commands"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// version is set by the build with -ldflags "-X main.version=…".
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	commands.Version = version
	err := execute(ctx, os.Args[1:], ascii.LinesWriter(os.Stdout), ascii.LinesWriter(os.Stderr))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, commands.PrintableAs("error", err))
		os.Exit(1)
	}
}
