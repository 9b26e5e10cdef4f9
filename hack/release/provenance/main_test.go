package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// workflow is the environment of a step in the release workflow.
var workflow = map[string]string{
	"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "own/er", "GITHUB_REF": "refs/tags/v1.2.3",
	"GITHUB_WORKFLOW_REF": "own/er/.github/workflows/release.yml@refs/tags/v1.2.3", "GITHUB_EVENT_NAME": "push",
	"GITHUB_REPOSITORY_ID": "1", "GITHUB_REPOSITORY_OWNER_ID": "2", "RUNNER_ENVIRONMENT": "github-hosted",
	"GITHUB_SHA": "0123456789012345678901234567890123456789", "GITHUB_RUN_ID": "3", "GITHUB_RUN_ATTEMPT": "4",
}

const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func checksums(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "checksums.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStatement(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	path := checksums(t, sum+"  a.tar.gz\n"+sum+" *b.tgz\n")
	if err := run([]string{"-checksums", path}, func(name string) string { return workflow[name] }, &out); err != nil {
		t.Fatal(err)
	}
	const want = `{"_type":"https://in-toto.io/Statement/v1",` +
		`"subject":[{"name":"a.tar.gz","digest":{"sha256":"` + sum + `"}},{"name":"b.tgz","digest":{"sha256":"` + sum + `"}}],` +
		`"predicateType":"https://slsa.dev/provenance/v1","predicate":{"buildDefinition":{` +
		`"buildType":"https://actions.github.io/buildtypes/workflow/v1",` +
		`"externalParameters":{"workflow":{"path":".github/workflows/release.yml","ref":"refs/tags/v1.2.3","repository":"https://github.example/own/er"}},` +
		`"internalParameters":{"github":{"event_name":"push","repository_id":"1","repository_owner_id":"2","runner_environment":"github-hosted"}},` +
		`"resolvedDependencies":[{"uri":"git+https://github.example/own/er@refs/tags/v1.2.3","digest":{"gitCommit":"0123456789012345678901234567890123456789"}}]},` +
		`"runDetails":{"builder":{"id":"https://github.example/own/er/.github/workflows/release.yml@refs/tags/v1.2.3"},` +
		`"metadata":{"invocationId":"https://github.example/own/er/actions/runs/3/attempts/4"}}}}`
	var got bytes.Buffer
	if err := json.Compact(&got, out.Bytes()); err != nil || got.String() != want {
		t.Errorf("got  %s\nwant %s, error %v", got.String(), want, err)
	}
}

// TestRefused checks that no statement is printed if a variable is missing or a list of checksums is not valid.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name := range workflow {
		if name == "GITHUB_ACTIONS" {
			continue
		}
		var out bytes.Buffer
		err := run(nil, func(asked string) string {
			if asked == name {
				return ""
			}
			return workflow[asked]
		}, &out)
		if err == nil || !strings.Contains(err.Error(), name) || out.Len() > 0 {
			t.Errorf("without %s: %q, error %v", name, out.String(), err)
		}
	}
	for name, list := range map[string]string{
		"empty": "", "no name": sum + "\n", "a short sum": sum[2:] + "  a\n", "no sum": "a.tar.gz\n", "empty line": sum + "  a\n\n",
	} {
		var out bytes.Buffer
		err := run([]string{"-checksums", checksums(t, list)}, func(name string) string { return workflow[name] }, &out)
		if err == nil || out.Len() > 0 {
			t.Errorf("%s: %q, error %v", name, out.String(), err)
		}
	}
}

// TestLocalBuild checks that a build outside of a workflow does not claim to be of one.
func TestLocalBuild(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(nil, func(string) string { return "" }, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "actions") || !strings.Contains(out.String(), "dry-run.sh") {
		t.Error(out.String())
	}
}
