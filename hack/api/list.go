package main

import (
	"fmt"
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// list returns the sorted declarations of each package, by its path in the module.
func list(module string, packages []string) (map[string][]string, error) {
	exports, listed, err := build(module, packages)
	if err != nil {
		return nil, err
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	api := map[string][]string{}
	for _, p := range listed {
		pkg, err := imports.Import(p.importPath)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", p.importPath, err)
		}
		l := lister{pkg: pkg, module: p.module}
		for _, name := range pkg.Scope().Names() {
			if token.IsExported(name) {
				l.object(pkg.Scope().Lookup(name))
			}
		}
		slices.Sort(l.declarations)
		if len(l.declarations) > 0 {
			api[strings.TrimPrefix(p.importPath, p.module+"/")] = l.declarations
		}
	}
	return api, nil
}

type listedPackage struct{ importPath, module string }

// build compiles the packages. It returns the file with the export data of each package and dependency, and the
// packages themselves.
func build(module string, packages []string) (exports map[string]string, listed []listedPackage, err error) {
	const format = "{{.ImportPath}}\t{{.Export}}\t{{.DepOnly}}\t{{with .Module}}{{.Path}}{{end}}"
	cmd := exec.Command("go", slices.Concat([]string{"list", "-export", "-deps", "-f", format, "--"}, packages)...)
	cmd.Dir, cmd.Stderr = module, os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("compile %s: %w", strings.Join(packages, " "), err)
	}
	exports = map[string]string{}
	for line := range strings.Lines(string(output)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		exports[fields[0]] = fields[1]
		if dependency := fields[2] == "true"; !dependency {
			listed = append(listed, listedPackage{importPath: fields[0], module: fields[3]})
		}
	}
	return exports, listed, nil
}

// lister collects the declarations of a package.
type lister struct {
	pkg          *types.Package
	module       string
	declarations []string
}

func (l *lister) add(format string, args ...any) {
	l.declarations = append(l.declarations, fmt.Sprintf(format, args...))
}

func (l *lister) object(obj types.Object) {
	switch obj := obj.(type) {
	case *types.Const:
		value := obj.Val().ExactString()
		if obj.Val().Kind() == constant.Float {
			value = obj.Val().String()
		}
		l.add("const %s %s = %s", obj.Name(), l.text(obj.Type()), value)
	case *types.Var:
		l.add("var %s %s", obj.Name(), l.text(obj.Type()))
	case *types.Func:
		l.add("func %s%s", obj.Name(), l.signature(obj))
	case *types.TypeName:
		l.typeName(obj)
	}
}

// typeName lists a type, its exported fields and its exported methods.
func (l *lister) typeName(obj *types.TypeName) {
	if obj.IsAlias() {
		l.add("type %s = %s", obj.Name(), l.text(types.Unalias(obj.Type())))
		return
	}
	parameters := ""
	if named, ok := obj.Type().(*types.Named); ok {
		parameters = l.typeParameters(named.TypeParams())
	}
	switch underlying := obj.Type().Underlying().(type) {
	case *types.Struct:
		l.add("type %s%s struct", obj.Name(), parameters)
		l.fields(obj.Name(), underlying)
	case *types.Interface:
		l.add("type %s%s interface", obj.Name(), parameters)
		for method := range underlying.Methods() {
			if !method.Exported() {
				l.add("type %s interface, unexported methods", obj.Name())
				continue
			}
			l.add("type %s interface, %s%s", obj.Name(), method.Name(), l.signature(method))
		}
		return
	default:
		l.add("type %s%s %s", obj.Name(), parameters, l.text(underlying))
	}
	l.methods(obj)
}

// methods lists the exported methods of a type that is not an interface.
func (l *lister) methods(obj *types.TypeName) {
	methods := types.NewMethodSet(types.NewPointer(obj.Type()))
	onValue := types.NewMethodSet(obj.Type())
	for selection := range methods.Methods() {
		method := selection.Obj().(*types.Func)
		// The embedded field of an exported type is listed in place of its methods.
		if !method.Exported() || len(selection.Index()) > 1 && l.embedsExported(obj, selection.Index()[0]) {
			continue
		}
		receiver := "*" + obj.Name()
		if onValue.Lookup(method.Pkg(), method.Name()) != nil {
			receiver = obj.Name()
		}
		l.add("method (%s) %s%s", receiver, method.Name(), l.signature(method))
	}
}

func (l *lister) embedsExported(obj *types.TypeName, field int) bool {
	return obj.Type().Underlying().(*types.Struct).Field(field).Exported()
}

// fields lists the exported fields of a struct, and those of the unexported structs that it embeds.
func (l *lister) fields(name string, s *types.Struct) {
	for field := range s.Fields() {
		embedded, isStruct := field.Type().Underlying().(*types.Struct)
		switch {
		case field.Embedded() && field.Exported():
			l.add("type %s struct, embedded %s", name, l.text(field.Type()))
		case field.Exported():
			l.add("type %s struct, %s %s", name, field.Name(), l.text(field.Type()))
		case field.Embedded() && isStruct:
			l.fields(name, embedded)
		}
	}
}

// signature returns the parameters and results of f without their names, which callers do not depend on.
func (l *lister) signature(f *types.Func) string {
	return l.typeParameters(f.Signature().TypeParams()) + strings.TrimPrefix(l.text(f.Type()), "func")
}

func (l *lister) typeParameters(list *types.TypeParamList) string {
	var parameters []string
	for p := range list.TypeParams() {
		parameters = append(parameters, p.String()+" "+l.text(p.Constraint()))
	}
	if len(parameters) == 0 {
		return ""
	}
	return "[" + strings.Join(parameters, ", ") + "]"
}

// text returns t. It names a package of the module by its path there, and any other package by its import path.
func (l *lister) text(t types.Type) string {
	if signature, ok := t.(*types.Signature); ok {
		parameters, results := unnamed(signature.Params()), unnamed(signature.Results())
		t = types.NewSignatureType(nil, nil, nil, parameters, results, signature.Variadic())
	}
	return types.TypeString(t, func(pkg *types.Package) string {
		if pkg == l.pkg {
			return ""
		}
		return strings.TrimPrefix(pkg.Path(), l.module+"/")
	})
}

func unnamed(tuple *types.Tuple) *types.Tuple {
	var variables []*types.Var
	for v := range tuple.Variables() {
		variables = append(variables, types.NewParam(token.NoPos, v.Pkg(), "", v.Type()))
	}
	return types.NewTuple(variables...)
}
