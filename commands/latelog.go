package commands

import "github.com/go-logr/logr"

// lateValues is a LogSink that formats the values of WithValues when a line is written. controller-runtime adds values
// for each reconcile, and most reconciles write no line.
type lateValues struct {
	logr.LogSink
	values []any
}

// WithValues implements logr.LogSink.
func (l lateValues) WithValues(keysAndValues ...any) logr.LogSink {
	return lateValues{l.LogSink, l.with(keysAndValues)}
}

// WithName implements logr.LogSink.
func (l lateValues) WithName(name string) logr.LogSink {
	return lateValues{l.LogSink.WithName(name), l.values}
}

// Info implements logr.LogSink.
func (l lateValues) Info(level int, message string, keysAndValues ...any) {
	l.LogSink.Info(level, message, l.with(keysAndValues)...)
}

// Error implements logr.LogSink.
func (l lateValues) Error(err error, message string, keysAndValues ...any) {
	l.LogSink.Error(err, message, l.with(keysAndValues)...)
}

// with returns the values of l and more, in a new slice: loggers with the same parent must not share one.
func (l lateValues) with(more []any) []any {
	return append(l.values[:len(l.values):len(l.values)], more...)
}
