package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLocalBuild checks the statement about a local build, which does not claim to be one of a workflow.
func TestLocalBuild(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run([]string{write(t, sum+"  a.tar.gz\n"+sum+" *b.tgz\n")}, &out); err != nil {
		t.Fatal(err)
	}
	var statement bytes.Buffer
	if err := json.Compact(&statement, out.Bytes()); err != nil {
		t.Fatal(err)
	}
	const builder = project + "/blob/main/hack/release/dry-run.sh"
	const before = `{"_type":"https://in-toto.io/Statement/v1",` +
		`"subject":[{"name":"a.tar.gz","digest":{"sha256":"` + sum + `"}},{"name":"b.tgz","digest":{"sha256":"` + sum + `"}}],` +
		`"predicateType":"https://slsa.dev/provenance/v1","predicate":`
	predicate, found := strings.CutPrefix(strings.TrimSuffix(statement.String(), "}"), before)
	if !found || !strings.HasPrefix(predicate, `{"buildDefinition":{"buildType":"`+builder+`","externalParameters":{},`+
		`"resolvedDependencies":[{"uri":"git+`+project+`@HEAD","digest":{"gitCommit":"`) ||
		!strings.HasSuffix(predicate, `"runDetails":{"builder":{"id":"`+builder+`"}}}`) {
		t.Fatal(statement.String())
	}
}

// TestRefused checks that nothing is printed about a file that is not valid.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"empty", "", "is empty"},
		{"no name", sum + "\n", "is not a line of sha256sum"},
		{"a short sum", sum[2:] + "  a\n", "is not a line of sha256sum"},
		{"no sum", "a.tar.gz\n", "is not a line of sha256sum"},
		{"empty line", sum + "  a\n\n", "is not a line of sha256sum"},
	} {
		var out bytes.Buffer
		err := run([]string{write(t, row.text)}, &out)
		if err == nil || !strings.Contains(err.Error(), row.want) || out.Len() > 0 {
			t.Errorf("%s: %q, error %v", row.name, out.String(), err)
		}
	}
	if err := run(nil, nil); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("error %v", err)
	}
}
