// Command kubectl-csr is a kubectl plugin: kubectl csr shows and approves requests, checks what the manager depends on,
// and rotates CAs. It acts with the rights of its user, and reads no key.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/csr-controller-manager/csr-controller-manager/commands/plugin"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// version is set by the build with -ldflags "-X main.version=…".
var version string

func main() {
	if build, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = build.Main.Version
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := plugin.Execute(ctx, version, os.Args[1:], os.Stdin, ascii.LinesWriter(os.Stdout), ascii.LinesWriter(os.Stderr))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: "+strings.ReplaceAll(ascii.Lines(err.Error()), "\n", "\n  "))
		os.Exit(1)
	}
}
