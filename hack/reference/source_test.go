package reference

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// files parses the Go files of a directory, without tests.
func files(dir string) ([]*ast.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []*ast.File
	for _, entry := range entries {
		name := entry.Name()
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		all = append(all, file)
	}
	return all, nil
}

// constant is a string constant with its value and comment.
type constant struct{ name, value, comment string }

// readConstants returns the string constants of the package in dir that want selects, in their order.
func readConstants(dir string, want func(name, kind string) bool) ([]constant, error) {
	all, err := files(dir)
	if err != nil {
		return nil, err
	}
	var found []constant
	for _, file := range all {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, is := node.(*ast.ValueSpec)
			if !is || len(spec.Names) != 1 || len(spec.Values) != 1 {
				return true
			}
			kind := ""
			if named, is := spec.Type.(*ast.Ident); is {
				kind = named.Name
			}
			value, is := text(spec.Values[0])
			if is && want(spec.Names[0].Name, kind) {
				found = append(found, constant{spec.Names[0].Name, value, strings.TrimSpace(spec.Doc.Text())})
			}
			return true
		})
	}
	return found, nil
}

// text returns the string that expression is: a literal, or several that are added.
func text(expression ast.Expr) (string, bool) {
	switch expression := expression.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(expression.Value)
		return value, err == nil && expression.Kind == token.STRING
	case *ast.BinaryExpr:
		left, isLeft := text(expression.X)
		right, isRight := text(expression.Y)
		return left + right, isLeft && isRight && expression.Op == token.ADD
	}
	return "", false
}

// packages returns the directories below those of root that hold Go files.
func packages(root string, below ...string) ([]string, error) {
	var dirs []string
	for _, folder := range below {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list packages: %w", err)
		}
	}
	return dirs, nil
}
