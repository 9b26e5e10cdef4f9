package main

import (
	"strings"
	"testing"
)

const sample = `package a

const limit = 2 * 3

func f(n int) string {
	switch {
	case n > 1:
		return "large"
	case n < 0:
	case n < -1, n == 0:
		return "small"
	case n == 7:
		return "never"
	}
	return ""
}
`

// TestComplete checks that conditions of cases and declarations are covered if a test evaluates them.
func TestComplete(t *testing.T) {
	t.Parallel()
	const profile = "mode: set\nm/a.go:5.22,6.9 1 1\nm/a.go:7.13,8.17 1 0\nm/a.go:10.22,11.17 1 1\nm/a.go:12.14,13.17 1 0\n" +
		"m/a.go:15.2,15.11 1 1\nm/b.go:1.1,2.2 1 0\n"
	got, err := complete(profile, func(name string) ([]byte, error) {
		if name != "m/a.go" {
			t.Errorf("reads %s, of which nothing is covered", name)
		}
		return []byte(sample), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	added, kept := strings.CutPrefix(got, profile)
	const want = "m/a.go:3.1,3.20 1 1\nm/a.go:10.2,10.21 1 1\nm/a.go:9.2,9.12 1 1\nm/a.go:7.2,7.12 1 1\n"
	if !kept || added != want {
		t.Errorf("added %q, want %q", added, want)
	}
	for _, wrong := range []string{"mode: set\nx", "mode: set\nm/a.go:1.2"} {
		if _, err := complete(wrong, nil); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}

// TestProfileOf checks both forms of the flag.
func TestProfileOf(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"test -cover -coverprofile p ./a/...": "p", "test -coverprofile=q ./a": "q", "test -failfast ./a": "", "test -coverprofile": "",
	} {
		if got := profileOf(strings.Fields(args)); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
