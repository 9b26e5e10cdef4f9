//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// podLogs keeps the log files of the manager's pods open, so that they can be read after their pods are deleted.
type podLogs struct {
	pattern string
	files   []*os.File
}

func (c *cluster) openLogs(t *testing.T) *podLogs {
	t.Helper()
	logs := &podLogs{pattern: filepath.Join(podLogDir(c.dir, "*"), namespace+"_*", "manager", "*.log")}
	t.Cleanup(func() {
		for _, file := range logs.files {
			_ = file.Close()
		}
	})
	logs.look(t)
	if len(logs.files) == 0 {
		t.Fatalf("no log matches %s", logs.pattern)
	}
	return logs
}

// look opens new log files.
func (l *podLogs) look(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob(l.pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if l.has(t, file) {
			_ = file.Close()
			continue
		}
		l.files = append(l.files, file)
	}
}

func (l *podLogs) has(t *testing.T, file *os.File) bool {
	t.Helper()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range l.files {
		if known, err := one.Stat(); err == nil && os.SameFile(known, info) {
			return true
		}
	}
	return false
}

// records are the serial numbers in the log of one container, by event.
type records map[string]map[string]bool

// read returns the records of all logs so far, by the log's path.
func (l *podLogs) read(t *testing.T) map[string]records {
	t.Helper()
	l.look(t)
	all := map[string]records{}
	for _, file := range l.files {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		found, err := parseRecords(file)
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		all[file.Name()] = found
	}
	return all
}

// parseRecords parses a log of the CRI: time, stream, F or P, text.
func parseRecords(log io.Reader) (records, error) {
	found := records{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 4)
		if len(fields) < 4 || fields[2] != "F" {
			return nil, fmt.Errorf("not a whole line: %q", lines.Text())
		}
		var record struct{ Msg, Serial string }
		if err := json.Unmarshal([]byte(fields[3]), &record); err != nil || record.Serial == "" {
			continue // the trace of a panic, or another message
		}
		if found[record.Msg] == nil {
			found[record.Msg] = map[string]bool{}
		}
		found[record.Msg][record.Serial] = true
	}
	return found, lines.Err()
}
