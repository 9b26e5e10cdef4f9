// Command provenance prints how a release was built, as SLSA provenance v1 (slsa.dev/spec/v1.0/provenance). It prints the
// predicate, or with -checksums the in-toto statement about the files in a list of sha256sum. hack/release/sign.sh runs it.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// The types are those of in-toto's and SLSA's specifications.
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "https://actions.github.io/buildtypes/workflow/v1"
)

// project is the name of a build outside of a workflow.
const project = "https://github.com/csr-controller-manager/csr-controller-manager"

type statement struct {
	Type          string     `json:"_type"`
	Subject       []subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type provenance struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	InternalParameters   map[string]any `json:"internalParameters,omitempty"`
	ResolvedDependencies []dependency   `json:"resolvedDependencies"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

type runDetails struct {
	Builder  map[string]string `json:"builder"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func main() {
	if err := run(os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "provenance:", err)
		os.Exit(1)
	}
}

func run(args []string, env func(string) string, out io.Writer) error {
	flags := flag.NewFlagSet("provenance", flag.ContinueOnError)
	checksums := flags.String("checksums", "", "list of sha256sum with the files that the statement is about")
	if err := flags.Parse(args); err != nil {
		return err
	}
	predicate, err := predicateOf(env)
	if err != nil {
		return err
	}
	var document any = predicate
	if *checksums != "" {
		subjects, err := subjectsOf(*checksums)
		if err != nil {
			return err
		}
		document = statement{Type: statementType, Subject: subjects, PredicateType: predicateType, Predicate: predicate}
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// predicateOf describes the run of the workflow, from the variables that GitHub sets for each step. Outside of a workflow it
// describes a local build of HEAD.
func predicateOf(env func(string) string) (provenance, error) {
	if env("GITHUB_ACTIONS") != "true" {
		return localBuild()
	}
	var missing []string
	get := func(name string) string {
		value := env(name)
		if value == "" {
			missing = append(missing, name)
		}
		return value
	}
	repository := get("GITHUB_SERVER_URL") + "/" + get("GITHUB_REPOSITORY")
	ref := get("GITHUB_REF")
	// OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v1.2.3
	workflow := get("GITHUB_WORKFLOW_REF")
	path, _, found := strings.Cut(strings.TrimPrefix(workflow, get("GITHUB_REPOSITORY")+"/"), "@")
	predicate := provenance{
		BuildDefinition: buildDefinition{
			BuildType: buildType,
			ExternalParameters: map[string]any{
				"workflow": map[string]string{"ref": ref, "repository": repository, "path": path},
			},
			InternalParameters: map[string]any{"github": map[string]string{
				"event_name":          get("GITHUB_EVENT_NAME"),
				"repository_id":       get("GITHUB_REPOSITORY_ID"),
				"repository_owner_id": get("GITHUB_REPOSITORY_OWNER_ID"),
				"runner_environment":  get("RUNNER_ENVIRONMENT"),
			}},
			ResolvedDependencies: []dependency{commit(repository, ref, get("GITHUB_SHA"))},
		},
		RunDetails: runDetails{
			Builder: map[string]string{"id": get("GITHUB_SERVER_URL") + "/" + workflow},
			Metadata: map[string]string{
				"invocationId": repository + "/actions/runs/" + get("GITHUB_RUN_ID") + "/attempts/" + get("GITHUB_RUN_ATTEMPT"),
			},
		},
	}
	if len(missing) > 0 {
		return provenance{}, fmt.Errorf("the workflow's environment lacks %s", strings.Join(missing, ", "))
	}
	if !found {
		return provenance{}, fmt.Errorf("GITHUB_WORKFLOW_REF: %q has no @", workflow)
	}
	return predicate, nil
}

// localBuild describes a build that no verifier may trust.
func localBuild() (provenance, error) {
	output, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return provenance{}, fmt.Errorf("read commit: %w", err)
	}
	const builder = project + "/blob/main/hack/release/dry-run.sh"
	return provenance{
		BuildDefinition: buildDefinition{
			BuildType: builder, ExternalParameters: map[string]any{},
			ResolvedDependencies: []dependency{commit(project, "HEAD", strings.TrimSpace(string(output)))},
		},
		RunDetails: runDetails{Builder: map[string]string{"id": builder}},
	}, nil
}

func commit(repository, ref, sha string) dependency {
	return dependency{URI: "git+" + repository + "@" + ref, Digest: map[string]string{"gitCommit": sha}}
}

// subjectsOf reads a list of sha256sum: 64 hexadecimal digits, a space, a space or an asterisk, and a name.
func subjectsOf(path string) ([]subject, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var subjects []subject
	for lines := bufio.NewScanner(file); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return nil, err
			}
			break
		}
		sum, name, _ := strings.Cut(lines.Text(), " ")
		if digest, err := hex.DecodeString(sum); err != nil || len(digest) != 32 || len(name) < 2 {
			return nil, fmt.Errorf("%s: %q is not a line of sha256sum", path, lines.Text())
		}
		subjects = append(subjects, subject{Name: name[1:], Digest: map[string]string{"sha256": sum}})
	}
	if len(subjects) == 0 {
		return nil, errors.New(path + " is empty")
	}
	return subjects, nil
}
