package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Go has no coverage counter for the condition of a case, and none for a declaration outside of a function. Gremlins
// therefore never mutates them (go-gremlins/gremlins#298). This program adds them to the coverage profile: a condition if
// a test reaches its case or a later case, and a declaration if a test reaches any code of its file.

// cover runs the go command with args, and completes the coverage profile that it writes.
func cover(args []string, profile string) error {
	command := exec.Command(os.Getenv(realGo), args...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return err
	}
	data, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	more, err := complete(string(data), func(name string) ([]byte, error) {
		_, below, _ := strings.Cut(name, modulePath+"/")
		return os.ReadFile(filepath.FromSlash(below))
	})
	if err != nil {
		return err
	}
	return os.WriteFile(profile, []byte(more), 0o600)
}

// profileOf returns the file that args name for the coverage profile, or "".
func profileOf(args []string) string {
	for i, arg := range args {
		if file, found := strings.CutPrefix(arg, "-coverprofile="); found {
			return file
		}
		if arg == "-coverprofile" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// block is a range of a file, in lines and columns.
type block struct{ fromLine, fromColumn, toLine, toColumn int }

// complete returns profile with the ranges that Go does not count. read returns a file by its name in the profile.
func complete(profile string, read func(name string) ([]byte, error)) (string, error) {
	covered := map[string][]block{}
	for _, line := range strings.Split(strings.TrimSpace(profile), "\n")[1:] { // the first line is the mode
		at := strings.LastIndex(line, ":")
		if at < 0 {
			return "", fmt.Errorf("read coverage profile: %q", line)
		}
		var b block
		var statements, count int
		if _, err := fmt.Sscanf(line[at+1:], "%d.%d,%d.%d %d %d",
			&b.fromLine, &b.fromColumn, &b.toLine, &b.toColumn, &statements, &count); err != nil {
			return "", fmt.Errorf("read coverage profile: %q: %w", line, err)
		}
		if count > 0 {
			covered[line[:at]] = append(covered[line[:at]], b)
		}
	}
	out := strings.TrimSpace(profile) + "\n"
	for name, blocks := range covered {
		source, err := read(name)
		if err != nil {
			return "", err
		}
		more, err := uncounted(source, blocks)
		if err != nil {
			return "", err
		}
		for _, b := range more {
			out += fmt.Sprintf("%s:%d.%d,%d.%d 1 1\n", name, b.fromLine, b.fromColumn, b.toLine, b.toColumn)
		}
	}
	return out, nil
}

// uncounted returns the declarations outside of functions in source, and the conditions of cases that a test evaluates.
func uncounted(source []byte, covered []block) ([]block, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	rangeOf := func(from, to token.Pos) block {
		begin, end := set.Position(from), set.Position(to)
		return block{begin.Line, begin.Column, end.Line, end.Column}
	}
	reached := func(clause *ast.CaseClause) bool {
		body := rangeOf(clause.Colon, clause.End())
		return slices.ContainsFunc(covered, func(b block) bool { return b.within(body) })
	}
	var found []block
	for _, decl := range file.Decls {
		if general, ok := decl.(*ast.GenDecl); ok {
			found = append(found, rangeOf(general.Pos(), general.End()))
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		choice, ok := node.(*ast.SwitchStmt)
		if !ok {
			return true
		}
		evaluated := false
		for _, statement := range slices.Backward(choice.Body.List) {
			clause := statement.(*ast.CaseClause)
			evaluated = evaluated || reached(clause)
			if evaluated && len(clause.List) > 0 {
				found = append(found, rangeOf(clause.Case, clause.Colon))
			}
		}
		return true
	})
	return found, nil
}

// within reports whether b begins and ends in other.
func (b block) within(other block) bool {
	begins := b.fromLine > other.fromLine || b.fromLine == other.fromLine && b.fromColumn >= other.fromColumn
	ends := b.toLine < other.toLine || b.toLine == other.toLine && b.toColumn <= other.toColumn
	return begins && ends
}
