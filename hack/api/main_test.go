package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const before = `package demo

import "time"

const Answer = 42

type base struct{ Shared string }

type Thing struct {
	base
	Name   string
	secret int
}

func (*Thing) Rename(to string) {}
func (t Thing) hidden() int { return t.secret }

type Source interface {
	Next(wait time.Duration) (name string, err error)
	sealed()
}

type Pair[K comparable, V any] struct{ Key K }

func Keep[T any](all []T, by func(T) bool) []T { return all }
func Remove(name string, others ...string)     {}
`

const listed = `const Answer untyped int = 42
func Keep[T any]([]T, func(T) bool) []T
func Remove(string, ...string)
method (*Thing) Rename(string)
type Pair struct, Key K
type Pair[K comparable, V any] struct
type Source interface
type Source interface, Next(time.Duration) (string, error)
type Source interface, unexported methods
type Thing struct
type Thing struct, Name string
type Thing struct, Shared string
`

func TestVerifyReportsWhatChanged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ old, new, want string }{
		"nothing":           {},
		"renamed parameter": {old: "name string, others", new: "it string, others"},
		"unexported field":  {old: "secret int", new: "secret, other int"},
		"removed function":  {old: "func Remove(", new: "func remove(", want: "- pkg: func Remove(string, ...string)\n"},
		"changed constant": {old: "42", new: "43",
			want: "- pkg: const Answer untyped int = 42\n+ pkg: const Answer untyped int = 43\n"},
		"added method": {old: ") hidden", new: ") Hidden", want: "+ pkg: method (Thing) Hidden() int\n"},
		"changed receiver": {old: "(*Thing)", new: "(Thing)",
			want: "- pkg: method (*Thing) Rename(string)\n+ pkg: method (Thing) Rename(string)\n"},
		"field of another type": {old: "Name   string", new: "Name []byte",
			want: "+ pkg: type Thing struct, Name []byte\n- pkg: type Thing struct, Name string\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			module, files := t.TempDir(), t.TempDir()
			write(t, filepath.Join(module, "go.mod"), "module example.com/demo\n\ngo 1.26\n")
			write(t, filepath.Join(module, "pkg", "demo.go"), before)
			if err := run(module, files, false, []string{"./..."}); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(files, "pkg.txt")); err != nil || string(got) != listed {
				t.Fatalf("%v, listed:\n%s", err, got)
			}
			write(t, filepath.Join(module, "pkg", "demo.go"), strings.Replace(before, test.old, test.new, 1))
			got, want := "", ""
			if err := run(module, files, true, []string{"./..."}); err != nil {
				got = err.Error()
			}
			if test.want != "" {
				want = "the exported API changed:\n" + test.want + `To accept the change, run "make api"`
			}
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestWriteRemovesTheFileOfAPackageThatIsGone(t *testing.T) {
	t.Parallel()
	module, files := t.TempDir(), t.TempDir()
	write(t, filepath.Join(module, "go.mod"), "module example.com/demo\n\ngo 1.26\n")
	write(t, filepath.Join(module, "a", "a.go"), "package a\n\nvar A int\n")
	write(t, filepath.Join(files, "b.txt"), "var B int\n")
	err := run(module, files, true, []string{"./..."})
	if err == nil || !strings.Contains(err.Error(), "- b: var B int\n") {
		t.Errorf("%v", err)
	}
	for _, verify := range []bool{false, true} {
		if err := run(module, files, verify, []string{"./..."}); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(files, "b.txt")); !os.IsNotExist(err) {
		t.Errorf("b.txt: %v", err)
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
