package commands

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// maxVerbosity is below that at which client-go logs the bodies of answers, of which one is the signing Secret. It
// bounds our own logger: client-go takes that from the context of a call.
const maxVerbosity = 7

// NewLogger returns a logger of JSON lines in ASCII to out, and makes the libraries below us log the same way.
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
