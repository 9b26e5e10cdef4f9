// Command provenance prints an in-toto statement with SLSA provenance v1 (slsa.dev/spec/v1.0/provenance): that the subjects in a list of
// sha256sum were built on this machine. hack/release/dry-run.sh signs it in place of the builder of a release.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
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
)

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
	ResolvedDependencies []dependency   `json:"resolvedDependencies"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

type runDetails struct {
	Builder map[string]string `json:"builder"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "provenance:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: provenance SUBJECTS")
	}
	document, err := localBuild(args[0])
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// localBuild returns the statement that the subjects in a list of sha256sum were built from HEAD on this machine. No verifier may trust it.
func localBuild(list string) (statement, error) {
	subjects, err := subjectsOf(list)
	if err != nil {
		return statement{}, err
	}
	output, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return statement{}, fmt.Errorf("read commit: %w", err)
	}
	const builder = project + "/blob/main/hack/release/dry-run.sh"
	return statement{
		Type: statementType, Subject: subjects, PredicateType: predicateType,
		Predicate: provenance{
			BuildDefinition: buildDefinition{
				BuildType: builder, ExternalParameters: map[string]any{},
				ResolvedDependencies: []dependency{{
					URI: "git+" + project + "@HEAD", Digest: map[string]string{"gitCommit": strings.TrimSpace(string(output))},
				}},
			},
			RunDetails: runDetails{Builder: map[string]string{"id": builder}},
		},
	}, nil
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
