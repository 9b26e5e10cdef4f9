package reference

import (
	"bytes"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestNoExportedDeclarationNeedsInternal checks that who imports this module can write each type of its exported API: no
// exported field, parameter, result, variable or embedded field has a type of internal/.
func TestNoExportedDeclarationNeedsInternal(t *testing.T) {
	var want []string
	got := internalTypes(t, loadPackages(t, "./api/...", "./csrenv", "./controllers/...", "./pkg/..."))
	expect.True(t, slices.Equal(got, want),
		"these exported declarations have a type of internal/:\n%s\nwant only\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// TestInternalTypesAreFound checks that the search reaches each place where an exported declaration may have a type.
func TestInternalTypesAreFound(t *testing.T) {
	hidden := types.NewPackage(module+"internal/hidden", "hidden")
	secret := types.NewNamed(types.NewTypeName(token.NoPos, hidden, "Secret", nil), types.NewStruct(nil, nil), nil)
	pkg := types.NewPackage(module+"pkg/shown", "shown")
	add := func(name string, underlying types.Type) *types.Named {
		named := types.NewNamed(types.NewTypeName(token.NoPos, pkg, name, nil), underlying, nil)
		pkg.Scope().Insert(named.Obj())
		return named
	}
	field := func(name string, kind types.Type, embedded bool) *types.Var {
		return types.NewField(token.NoPos, pkg, name, kind, embedded)
	}
	tuple := types.NewTuple(types.NewParam(token.NoPos, pkg, "", types.NewPointer(secret)))
	function := types.NewSignatureType(nil, nil, nil, tuple, nil, false)
	base := add("base", types.NewStruct([]*types.Var{field("Promoted", secret, false), field("own", secret, false)}, nil))
	add("Struct", types.NewStruct([]*types.Var{
		field("Field", types.NewMap(types.Typ[types.String], types.NewSlice(secret)), false), field("own", secret, false), field("base", base, true),
	}, nil))
	add("Embeds", types.NewStruct([]*types.Var{field("Secret", types.NewPointer(secret), true)}, nil))
	add("Func", function)
	add("Interface", types.NewInterfaceType([]*types.Func{types.NewFunc(token.NoPos, pkg, "Do", function)}, nil).Complete())
	add("Chan", types.NewChan(types.SendRecv, types.NewArray(secret, 2)))
	methods := add("Methods", types.Typ[types.Int])
	result := types.NewSignatureType(types.NewParam(token.NoPos, pkg, "", methods), nil, nil, nil, tuple, false)
	methods.AddMethod(types.NewFunc(token.NoPos, pkg, "Get", result))
	methods.AddMethod(types.NewFunc(token.NoPos, pkg, "get", result))
	pkg.Scope().Insert(types.NewVar(token.NoPos, pkg, "Variable", secret))
	pkg.Scope().Insert(types.NewVar(token.NoPos, pkg, "variable", secret))
	pkg.Scope().Insert(types.NewFunc(token.NoPos, pkg, "Call", function))
	got := strings.ReplaceAll(strings.Join(internalTypes(t, []*types.Package{pkg}), " "), "pkg/shown.", "")
	want := strings.ReplaceAll("Call Chan Embeds.Secret Func Interface.Do Methods.Get Struct.Field Struct.Promoted Variable ", " ", ": internal/hidden.Secret ")
	expect.True(t, got+" " == want, "found %s\nwant  %s", got, want)
}

const module = "github.com/csr-controller-manager/csr-controller-manager/"

// loadPackages returns the types of packages, from what the compiler exports.
func loadPackages(t *testing.T, patterns ...string) (all []*types.Package) {
	t.Helper()
	list := func(arguments ...string) []string {
		command := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"list"}, arguments, patterns)...)
		command.Dir = "../.."
		var problems bytes.Buffer
		command.Stderr = &problems
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, problems.String())
		}
		return strings.Fields(string(out))
	}
	files := map[string]string{}
	for _, line := range list("-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}}={{.Export}}{{end}}") {
		path, file, _ := strings.Cut(line, "=")
		files[path] = file
	}
	compiled := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	for _, path := range list() {
		pkg, err := compiled.Import(path)
		expect.NoError(t, err)
		all = append(all, pkg)
	}
	return all
}

// internalTypes returns the exported declarations of packages that have a type of internal/, sorted.
func internalTypes(t *testing.T, packages []*types.Package) []string {
	t.Helper()
	found := &search{}
	declarations := 0
	for _, pkg := range packages {
		for _, name := range pkg.Scope().Names() {
			obj := pkg.Scope().Lookup(name)
			if !obj.Exported() {
				continue
			}
			declarations++
			path := strings.TrimPrefix(pkg.Path(), module) + "." + name
			named, defined := obj.Type().(*types.Named)
			if _, isType := obj.(*types.TypeName); !isType || !defined || named.Obj() != obj {
				found.in(path, obj.Type())
				continue
			}
			found.in(path, named.Underlying())
			for method := range named.Methods() {
				if method.Exported() {
					found.in(path+"."+method.Name(), method.Type())
				}
			}
		}
	}
	if declarations == 0 {
		t.Fatal("no exported declaration")
	}
	slices.Sort(found.all)
	return slices.Compact(found.all)
}

type search struct{ all []string }

// in adds path for each type of internal/ that a user of a value of that type can see.
func (s *search) in(path string, of types.Type) {
	switch of := of.(type) {
	case *types.Named:
		if pkg := of.Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), module+"internal/") {
			s.all = append(s.all, fmt.Sprintf("%s: %s.%s", path, strings.TrimPrefix(pkg.Path(), module), of.Obj().Name()))
		}
		for argument := range of.TypeArgs().Types() {
			s.in(path, argument)
		}
	case *types.Alias:
		s.in(path, types.Unalias(of))
	case *types.TypeParam:
		s.in(path, of.Constraint().Underlying())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels and maps
		s.in(path, of.Elem())
		if keyed, isMap := of.(*types.Map); isMap {
			s.in(path, keyed.Key())
		}
	case *types.Tuple:
		for parameter := range of.Variables() {
			s.in(path, parameter.Type())
		}
	case *types.Signature:
		s.in(path, of.Params())
		s.in(path, of.Results())
		for parameter := range of.TypeParams().TypeParams() {
			s.in(path, parameter)
		}
	case *types.Interface:
		for method := range of.Methods() {
			if method.Exported() {
				s.in(path+"."+method.Name(), method.Type())
			}
		}
	case *types.Struct:
		s.inFields(path, of)
	}
}

// inFields searches exported fields, and those that an unexported embedded type promotes.
func (s *search) inFields(path string, of *types.Struct) {
	for field := range of.Fields() {
		kind := types.Unalias(field.Type())
		if pointer, isPointer := kind.(*types.Pointer); isPointer {
			kind = pointer.Elem()
		}
		switch {
		case field.Exported():
			s.in(path+"."+field.Name(), field.Type())
		case field.Embedded():
			s.in(path, kind.Underlying())
		}
	}
}
