// Package expect compares in one line what a test got with what it wants.
package expect

import (
	"net/netip"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Equal reports the differences between want and got. If reflect finds none, it runs no other code, which would
// distract a fuzz target.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	if reflect.DeepEqual(want, got) {
		return
	}
	options = append(options, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// NoError ends the test unless err is nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Error compares the text of err. Without a text there must be no error.
func Error(t testing.TB, what string, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	Equal(t, what+": error", got, want)
}

// True reports an error unless ok. The arguments are evaluated even if ok.
func True(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
}

// File returns the text of a file, or ends the test.
func File(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	NoError(t, err)
	return string(data)
}
