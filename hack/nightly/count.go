package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	// These are lines of "go test -v": a test starts or continues, says something, and ends.
	runs   = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)$`)
	says   = regexp.MustCompile(`^ +\S+\.go:\d+: (.*)`)
	ends   = regexp.MustCompile(`--- (PASS|FAIL|SKIP): (\S+) \(`) // also behind text without a newline
	nobody = regexp.MustCompile(`^testing: warning: no tests to run`)
)

// tests are the tests and subtests in the log of a part. All are zero if the part has none.
type tests struct {
	Passed, Failed, Skipped int
	// Notes name each test that failed or was skipped, with what it said last: the reason.
	Notes []string
}

// count reads the output of "go test -v". It counts a test only if the output says that it started, since the log of a test may contain the
// output of other tests.
func count(log string) (t tests) {
	said, current := map[string]string{}, ""
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		if found := runs.FindStringSubmatch(line); found != nil {
			current = found[1]
			said[current] += ""
			continue
		}
		if found := says.FindStringSubmatch(line); found != nil {
			said[current] = found[1]
			continue
		}
		if nobody.MatchString(line) {
			t.fail("a command of go test names tests that do not exist")
		}
		found := ends.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		reason, started := said[found[2]]
		if !started {
			continue
		}
		delete(said, found[2])
		switch found[1] {
		case "PASS":
			t.Passed++
		case "FAIL":
			t.fail("failed " + found[2] + ": " + reason)
		case "SKIP":
			t.Skipped++
			t.Notes = append(t.Notes, "skipped "+found[2]+": "+reason)
		}
	}
	delete(said, "")
	for _, name := range slices.Sorted(maps.Keys(said)) {
		t.fail("did not end: " + name)
	}
	return t
}

func (t *tests) fail(note string) {
	t.Failed++
	t.Notes = append(t.Notes, note)
}
