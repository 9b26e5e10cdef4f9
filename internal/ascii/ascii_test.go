package ascii_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		`plain "text" \ with %q`:  `plain "text" \ with %q`,
		"two\nlines\tand\r":       `two\nlines\tand\r`,
		"\x1b[31m\x7f\x00":        `\x1b[31m\x7f\x00`,
		"\u009b31m \u202e \u00a0": `\u009b31m \u202e \u00a0`,
		"syst\u0435m:masters '":   `syst\u0435m:masters '`,
		"\u3164\u2028\ufeff":      `\u3164\u2028\ufeff`, // strconv.Quote does not escape the first, which looks like a space
		"\U000e0041":              `\U000e0041`,
		"\U0001f511":              `\U0001f511`,
		"\xff\xc3 \ufffd":         `\xff\xc3 \ufffd`,
	} {
		expect.Equal(t, text, ascii.Quote(text), want)
	}
	expect.Equal(t, "Lines", ascii.Lines("a\n\tb\u202e\r\n"), "a\n\tb\\u202e\\r\n")
}

// FuzzJSON checks that a reader gets the text that was written, and that only ASCII is written.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{"", "a\n\"\\", "\u009b\u202e\x7f", "\U0001f511\uffff", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		plain, err := json.Marshal(text)
		expect.NoError(t, err)
		var out bytes.Buffer
		if n, err := ascii.JSONWriter(&out).Write(plain); n != len(plain) || err != nil {
			t.Fatalf("%d bytes, error %v", n, err)
		}
		for _, char := range out.Bytes() {
			if char < ' ' || char > '~' {
				t.Fatalf("%q has %q", out.Bytes(), char)
			}
		}
		var want, got string
		expect.NoError(t, json.Unmarshal(plain, &want))
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
			t.Errorf("read %q, want %q: %v", got, want, err)
		}
	})
}

// TestWithoutKeys checks that the error about a kubeconfig whose users have the same name says so, and prints no credential. Each
// program that reads such a file must use it.
func TestWithoutKeys(t *testing.T) {
	_, err := clientcmd.Load([]byte(`{"apiVersion":"v1","kind":"Config","users":[
		{"name":"me","user":{"client-key-data":"c2VjcmV0"}},{"name":"me","user":{"token":"secret"}}]}`))
	expect.True(t, err != nil && strings.Contains(err.Error(), fmt.Sprintf("%d", []byte("secret"))), "client-go prints no key any more: %v", err)
	text := ascii.WithoutKeys(fmt.Errorf("read: %w", err)).Error()
	expect.True(t, strings.HasSuffix(text, `duplicate name "me"`) && !strings.Contains(text, "secret"), "%s", text)
	reads, files := regexp.MustCompile(`clientcmd\.(LoadFromFile|BuildConfigFromFlags|NewNonInteractiveDeferredLoadingClientConfig)\(`), 0
	for _, folder := range []string{"commands", "controllers", "internal", "pkg"} {
		expect.NoError(t, filepath.WalkDir("../../"+folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source := expect.File(t, path)
			places := len(reads.FindAllString(source, -1))
			expect.True(t, places <= strings.Count(source, "ascii.WithoutKeys("), "%s reads kubeconfigs, and does not hide keys in errors", path)
			files += places
			return nil
		}))
	}
	expect.True(t, files >= 5, "only %d places", files)
}
