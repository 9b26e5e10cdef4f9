package monitoring

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// options finds the options of a metric from the start to its name, and word the parts of the name: namespace, subsystem and name. The first
// two may be missing.
var (
	options = regexp.MustCompile(`Opts\{\s*(?:(?:Namespace|Subsystem): +[\w."]+,\s*)*Name: +"\w+"`)
	word    = regexp.MustCompile(`"\w+"`)
)

// TestKubeletMetrics finds the kubelet's metrics that rules and dashboard use in the source of the Kubernetes version
// that hack/controlplane pins.
func TestKubeletMetrics(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	list.Dir = "../../hack/controlplane"
	output, err := list.Output()
	dir := regexp.MustCompile(`"Dir": "(.*)"`).FindSubmatch(output)
	if err != nil || dir == nil {
		t.Fatalf("no Dir in %s, error %v", output, err)
	}
	var defined []string
	for _, file := range []string{"cmd/kubelet/app/server.go", "pkg/kubelet/certificate/kubelet.go"} {
		source := strings.ReplaceAll(string(read(t, filepath.Join(string(dir[1]), file))), "metrics.KubeletSubsystem", `"kubelet"`)
		for _, found := range options.FindAllString(source, -1) {
			defined = append(defined, strings.ReplaceAll(strings.Join(word.FindAllString(found, -1), "_"), `"`, ""))
		}
	}
	used := regexp.MustCompile(`\bkubelet_\w+`).FindAllString(string(read(t, plainFile))+string(read(t, dashboardFile)), -1)
	if len(used) == 0 {
		t.Error("none is used")
	}
	for _, name := range used {
		if !slices.Contains(defined, name) {
			t.Errorf("no kubelet has %s; it has %v", name, defined)
		}
	}
}
