// Package commands holds the commands of the manager's program: the manager itself, and what needs the manager's place.
package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
)

// Version is set by main.
var Version string

// VersionOrBuild returns Version, or the version that the build has recorded.
func VersionOrBuild() string {
	version := Version
	if build, ok := debug.ReadBuildInfo(); ok {
		version = cmp.Or(version, build.Main.Version)
	}
	return cmp.Or(version, "unknown")
}

// Printable returns err as the manager prints it before it exits.
func Printable(err error) string {
	return "csr-controller-manager: " + strings.ReplaceAll(ascii.Lines(err.Error()), "\n", "\n  ")
}

// Execute runs the command that args name, or the manager if they name none. A command writes its result to out.
func Execute(ctx context.Context, args []string, out io.Writer) error {
	root := &cobra.Command{
		Use:           "csr-controller-manager",
		Long:          "csr-controller-manager approves, signs and cleans CertificateSigningRequests.",
		Version:       VersionOrBuild(),
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true, // main prints errors
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.Flags().SortFlags = false
	root.Flags().AddFlagSet(config.NewFlags(config.Default()).FlagSet)
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		configuration, err := config.Load(args, cel.New) // cobra stops at the first bad value; this reports all of them
		if err != nil {
			return fmt.Errorf("bad configuration (--help lists the flags):\n%w", err)
		}
		return manage(cmd.Context(), configuration)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root {
			return root.RunE(root, nil)
		}
		return fmt.Errorf("%s (--help lists the flags): %w", cmd.Name(), err)
	})
	now := clock.RealClock{}
	root.AddCommand(explainCommand(now), rulesCommand(now), bootstrapTokenCommand(now), writeTrustCommand(), writeAuthorizationCommand(), renewKubeletCommand())
	for _, cmd := range append(root.Commands(), root) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	root.SetOut(out)
	root.SetErr(ascii.LinesWriter(os.Stderr))
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// maxVerbosity is below the verbosity at which client-go logs the bodies of answers. One of these bodies is the signing
// Secret. The bound holds for our logger, which client-go takes from the context of a call.
const maxVerbosity = 7

// newLogger returns a logger that writes JSON lines in ASCII to out.
func newLogger(verbosity int, out io.Writer) logr.Logger {
	return logr.FromSlogHandler(slog.NewJSONHandler(ascii.JSONWriter(out), &slog.HandlerOptions{
		Level: slog.Level(-min(verbosity, maxVerbosity)),
		ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
			// slog calls verbosity 1 "DEBUG+3": say V1.
			if level, ok := attr.Value.Any().(slog.Level); ok && attr.Key == slog.LevelKey && level < slog.LevelInfo {
				return slog.String(slog.LevelKey, fmt.Sprintf("V%d", -level))
			}
			return attr
		},
	}))
}
