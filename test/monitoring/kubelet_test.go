package monitoring

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestKubeletMetrics finds the kubelet's metrics that rules and dashboard use in the source of the Kubernetes version
// that hack/controlplane pins.
func TestKubeletMetrics(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	list.Dir = "../../hack/controlplane"
	output, err := list.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	dir := regexp.MustCompile(`"Dir": "(.*)"`).FindSubmatch(output)
	if dir == nil {
		t.Fatalf("no Dir in %s", output)
	}
	defined := map[string]bool{}
	for _, file := range []string{"cmd/kubelet/app/server.go", "pkg/kubelet/certificate/kubelet.go"} {
		for _, name := range metricNames(t, filepath.Join(string(dir[1]), file)) {
			defined[name] = true
		}
	}
	used := regexp.MustCompile(`\bkubelet_\w+`).FindAll(bytes.Join([][]byte{read(t, plainFile), read(t, dashboardFile)}, nil), -1)
	if len(used) == 0 {
		t.Error("none is used")
	}
	for _, name := range used {
		if !defined[string(name)] {
			t.Errorf("no kubelet has %s; it has %v", name, defined)
		}
	}
}

// metricNames returns the names in the options of metrics in a Go file: namespace, subsystem and name. The first two
// may be missing, texts, or the kubelet's constant for itself.
func metricNames(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(parsed, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if kind, ok := literal.Type.(*ast.SelectorExpr); !ok || !strings.HasSuffix(kind.Sel.Name, "Opts") {
			return true
		}
		parts := map[string]string{}
		for _, element := range literal.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			if key, ok := pair.Key.(*ast.Ident); ok {
				parts[key.Name] = text(pair.Value)
			}
		}
		name := parts["Name"]
		for _, prefix := range []string{parts["Subsystem"], parts["Namespace"]} {
			if prefix != "" {
				name = prefix + "_" + name
			}
		}
		names = append(names, name)
		return true
	})
	return names
}

func text(value ast.Expr) string {
	switch value := value.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(value.Value); err == nil {
			return text
		}
	case *ast.SelectorExpr:
		if value.Sel.Name == "KubeletSubsystem" {
			return "kubelet"
		}
	}
	return ""
}
