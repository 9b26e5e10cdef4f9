package report

import (
	"log/slog"

	"github.com/go-logr/logr"
)

// Warn logs message at the level WARN, which logr has no method for. keysAndValues are those of logr.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	slog.New(logr.ToSlogHandler(log)).Warn(message, keysAndValues...)
}
