// Package commands holds the commands of the manager's program: the manager itself, and what needs the manager's place.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// Version is set by main.
var Version string

// VersionOrBuild returns Version, or the version that the build has recorded.
func VersionOrBuild() string {
	if Version != "" {
		return Version
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		return build.Main.Version
	}
	return "unknown"
}

// Printable returns err as the manager prints it before it exits.
func Printable(err error) string {
	return "csr-controller-manager: " + strings.ReplaceAll(ascii.Lines(err.Error()), "\n", "\n  ")
}

// Execute runs the command that args name, or the manager if they name none. A command writes its result to out.
func Execute(ctx context.Context, args []string, out io.Writer) error {
	return execute(ctx, args, out, terminationLog)
}

// execute runs a command as Execute does. It writes the error of a manager to the file log. Other commands do not write
// that file: a person may run them in the manager's container, which does not end with them.
func execute(ctx context.Context, args []string, out io.Writer, log string) error {
	root := managerCommand(args)
	root.AddCommand(explainCommand(), bootstrapTokenCommand(clock.RealClock{}), writeTrustCommand())
	root.SilenceErrors, root.SilenceUsage = true, true // main prints errors
	root.SetOut(out)
	root.SetErr(ascii.LinesWriter(os.Stderr))
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root {
			return root.RunE(root, nil) // cobra stops at the first mistake; config.Load reports all of them
		}
		return usageError(cmd, err)
	})
	root.SetArgs(args)
	executed, err := root.ExecuteContextC(ctx)
	if err != nil && executed == root {
		err = errors.Join(err, noteTermination(log, Printable(err)))
	}
	return err
}

// managerCommand returns the root command, which runs the manager. config.Load parses args, to report every mistake
// together.
func managerCommand(args []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "csr-controller-manager",
		Long:              "csr-controller-manager approves, signs and cleans CertificateSigningRequests.",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              cobra.ArbitraryArgs,
	}
	for _, group := range config.NewFlags(config.Default()).Groups {
		cmd.Flags().AddFlagSet(group.Flags)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		configuration, err := config.Load(args)
		switch {
		case errors.Is(err, config.ErrHelp):
			return err
		case errors.Is(err, config.ErrVersion):
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "csr-controller-manager", VersionOrBuild())
			return err
		case err != nil:
			return fmt.Errorf("bad configuration (--help lists the flags):\n%w", err)
		}
		return manage(cmd.Context(), configuration)
	}
	return cmd
}

// usage writes how to call cmd: its commands, and its flags. Those of the manager are in groups.
func usage(cmd *cobra.Command) error {
	text := "Usage:\n  " + cmd.UseLine() + "\n"
	groups := []config.Group{{Title: "Flags", Flags: cmd.LocalFlags()}}
	if cmd == cmd.Root() {
		groups = config.NewFlags(config.Default()).Groups
		text += "\nCommands, each with a --help of its own:\n"
		for _, each := range cmd.Commands() {
			if each.IsAvailableCommand() {
				text += fmt.Sprintf("  %-*s  %s\n", each.NamePadding(), each.Name(), each.Short)
			}
		}
	}
	for _, group := range groups {
		if group.Flags.HasAvailableFlags() {
			text += "\n" + group.Title + ":\n" + group.Flags.FlagUsagesWrapped(120)
		}
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// usageError returns an error about a command line with problems, or nil if there are none.
func usageError(cmd *cobra.Command, problems ...error) error {
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%s (--help lists the flags): %w", cmd.Name(), err)
	}
	return nil
}

// atMost returns an error about the first of args that is too many.
func atMost(most int, args []string) error {
	if len(args) <= most {
		return nil
	}
	return fmt.Errorf("unexpected argument %q", args[most])
}

// maxVerbosity is below the verbosity at which client-go logs the bodies of answers. One of these bodies is the signing
// Secret. The bound holds for our logger, which client-go takes from the context of a call.
const maxVerbosity = 7

// NewLogger returns a logger that writes JSON lines in ASCII to out. controller-runtime and klog use it from then on.
func NewLogger(verbosity int, out io.Writer) logr.Logger {
	logger := jsonLogger(min(verbosity, maxVerbosity), out)
	log.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}

func jsonLogger(verbosity int, out io.Writer) logr.Logger {
	return logr.FromSlogHandler(slog.NewJSONHandler(ascii.JSONWriter(out), &slog.HandlerOptions{
		Level: slog.Level(-verbosity),
		ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
			// slog calls verbosity 1 "DEBUG+3": say V1.
			if level, ok := attr.Value.Any().(slog.Level); ok && attr.Key == slog.LevelKey && level < slog.LevelInfo {
				return slog.String(slog.LevelKey, fmt.Sprintf("V%d", -level))
			}
			return attr
		},
	}))
}
