// Command api lists the exported API of the public packages, one declaration in each line, in hack/api/<package>.txt.
// A change of the API is then a change of a committed file, so a reviewer sees it. "make api" writes the files; "make
// verify" compares them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// public lists the packages that other modules import.
var public = []string{"./api/...", "./csrenv", "./controllers/...", "./pkg/..."}

func main() {
	verify := flag.Bool("verify", false, "compare the files with the API and change nothing")
	flag.Parse()
	if err := run(".", "hack/api", *verify, public); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// run writes the API of the packages in the module directory to files, or compares both.
func run(module, files string, verify bool, packages []string) error {
	api, err := list(module, packages)
	if err != nil {
		return err
	}
	kept, err := read(files)
	if err != nil {
		return err
	}
	if verify {
		return compare(kept, api)
	}
	for path := range kept {
		if _, ok := api[path]; !ok {
			if err := os.Remove(filepath.Join(files, path+".txt")); err != nil {
				return err
			}
		}
	}
	for path, declarations := range api {
		name := filepath.Join(files, path+".txt")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(strings.Join(declarations, "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// read returns the declarations that the files hold, by package.
func read(files string) (map[string][]string, error) {
	kept := map[string][]string{}
	err := filepath.WalkDir(files, func(name string, _ fs.DirEntry, err error) error {
		path, isList := strings.CutSuffix(name, ".txt")
		if err != nil || !isList {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if path, err = filepath.Rel(files, path); err != nil {
			return err
		}
		kept[filepath.ToSlash(path)] = strings.Split(strings.TrimSpace(string(content)), "\n")
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	return kept, err
}

// compare returns an error that lists what was removed from the API and what was added.
func compare(kept, api map[string][]string) error {
	var changes strings.Builder
	paths := maps.Clone(kept)
	maps.Copy(paths, api)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, declaration := range slices.Sorted(slices.Values(slices.Concat(kept[path], api[path]))) {
			switch was, is := slices.Contains(kept[path], declaration), slices.Contains(api[path], declaration); {
			case was && !is:
				fmt.Fprintf(&changes, "- %s: %s\n", path, declaration)
			case is && !was:
				fmt.Fprintf(&changes, "+ %s: %s\n", path, declaration)
			}
		}
	}
	if changes.Len() == 0 {
		return nil
	}
	return fmt.Errorf("the exported API changed:\n%sTo accept the change, run \"make api\"", changes.String())
}
