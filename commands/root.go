// Package commands holds the commands of the manager's program. The kubectl plugin takes some of them.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
func Printable(err error) string { return PrintableAs("csr-controller-manager", err) }

// PrintableAs returns err in printable ASCII, behind prefix.
func PrintableAs(prefix string, err error) string {
	return prefix + ": " + strings.ReplaceAll(ascii.Lines(err.Error()), "\n", "\n  ")
}

// Execute runs the command that args name, or the manager if they name none. A command writes its result to out.
func Execute(ctx context.Context, args []string, out io.Writer) error {
	return execute(ctx, args, out, terminationLog)
}

// execute runs a command as Execute does. It writes the error of a manager to the file log. Other commands do not write
// that file: a person may run them in the manager's container, which does not end with them.
func execute(ctx context.Context, args []string, out io.Writer, log string) error {
	p := &program{groups: map[*cobra.Command][]config.Group{}}
	root := p.managerCommand()
	source := &managerSource{program: p}
	root.AddCommand(NewCheckCommand(source), NewExplainCommand(source), NewPendingCommand(source),
		NewApproveCommand(source), NewRotationCommand(source),
		bootstrapTokenCommand(clock.RealClock{}), writeTrustCommand())
	root.SilenceErrors, root.SilenceUsage = true, true // main prints errors
	root.SetOut(out)
	root.SetErr(ascii.LinesWriter(os.Stderr))
	root.SetUsageFunc(p.usage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if p.groups[cmd] != nil {
			return cmd.RunE(cmd, nil) // cobra stops at the first mistake; config.Load reports all of them
		}
		return usageError(cmd, err)
	})
	p.args = withTwoDashes(root, args)
	root.SetArgs(p.args)
	executed, err := root.ExecuteContextC(ctx)
	if err != nil && executed == root {
		err = errors.Join(err, noteTermination(log, Printable(err)))
	}
	return err
}

// withTwoDashes returns args with two dashes before each long flag, since one dash was enough in earlier
// versions.
func withTwoDashes(root *cobra.Command, args []string) []string {
	known := map[string]bool{}
	var collect func(*cobra.Command)
	collect = func(cmd *cobra.Command) {
		note := func(flag *pflag.Flag) { known[flag.Name] = len(flag.Name) > 1 }
		cmd.Flags().VisitAll(note)
		cmd.PersistentFlags().VisitAll(note)
		for _, child := range cmd.Commands() {
			collect(child)
		}
	}
	collect(root)
	args = slices.Clone(args)
	for i, arg := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && known[name] {
			args[i] = "-" + arg
		}
	}
	return args
}

// program holds the state of one execution.
type program struct {
	args   []string
	groups map[*cobra.Command][]config.Group // of flags
}

// configured adds the manager's flags to cmd. command holds the flags of cmd itself, and is nil for the manager. run
// gets the configuration and the other arguments.
func (p *program) configured(
	cmd *cobra.Command, command *config.Command, run func(*cobra.Command, *config.Configuration, []string) error,
) *cobra.Command {
	groups, limit := config.NewFlags(config.Default()).Groups, cmd.Args
	if command != nil {
		command.MaxArgs = math.MaxInt // limit says how many
		groups = append([]config.Group{{Title: "Of this command", Flags: command.Flags}}, groups...)
	}
	p.groups[cmd] = groups
	for _, group := range groups {
		cmd.Flags().AddFlagSet(group.Flags)
	}
	cmd.Args = cobra.ArbitraryArgs // RunE checks them, to report every mistake together
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, args, err := cmd.Root().Find(p.args)
		if err != nil {
			return err
		}
		configuration, args, err := config.Load(args, command)
		switch {
		case errors.Is(err, config.ErrHelp):
			return err
		case errors.Is(err, config.ErrVersion):
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "csr-controller-manager", VersionOrBuild())
			return err
		}
		if limit != nil {
			err = errors.Join(limit(cmd, args), err)
		}
		if err != nil {
			return fmt.Errorf("bad configuration (%s lists the flags):\n%w", strings.TrimSpace(shortPath(cmd)+" --help"), err)
		}
		return run(cmd, configuration, args)
	}
	return cmd
}

// usage writes how to call cmd: its commands, and its flags by group.
func (p *program) usage(cmd *cobra.Command) error {
	text := "Usage:\n  " + cmd.UseLine() + "\n"
	if cmd.HasAvailableSubCommands() {
		text += "\nCommands, each with a --help of its own:\n"
		for _, each := range cmd.Commands() {
			if each.IsAvailableCommand() {
				text += fmt.Sprintf("  %-*s  %s\n", each.NamePadding(), each.Name(), each.Short)
			}
		}
	}
	groups, known := p.groups[cmd]
	if !known {
		groups = []config.Group{
			{Title: "Flags", Flags: cmd.LocalFlags()}, {Title: "Common flags", Flags: cmd.InheritedFlags()},
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
