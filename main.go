// Command csr-controller-manager approves, signs and cleans CertificateSigningRequests.
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
	err := commands.Execute(ctx, os.Args[1:], ascii.LinesWriter(os.Stdout))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, commands.Printable(err))
		os.Exit(1)
	}
}
