package kubelet

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestSignalFor checks which of the unit files of a kubelet counts, as systemd.unit(5) says.
func TestSignalFor(t *testing.T) {
	t.Parallel()
	const unit = "systemd/system/kubelet.service"
	for name, test := range map[string]struct {
		files map[string]string
		want  syscall.Signal // 0 is a refusal
	}{
		"packages of kubeadm": {map[string]string{
			"usr/lib/" + unit: "[Service]\nRestart=always\n", "usr/lib/" + unit + ".d/10-kubeadm.conf": "[Service]\nExecStart=\n",
		}, syscall.SIGTERM},
		"spaces and a comment":                  {map[string]string{"etc/" + unit: "#Restart=always\nRestart = on-failure \n"}, syscall.SIGKILL},
		"a unit of the administrator":           {map[string]string{"usr/lib/" + unit: "Restart=always", "etc/" + unit: "ExecStart=/kubelet"}, 0},
		"a drop-in is stronger than each unit":  {map[string]string{"etc/" + unit: "Restart=always", "usr/lib/" + unit + ".d/20.conf": "Restart=on-failure"}, syscall.SIGKILL},
		"the last name counts, not the folder":  {map[string]string{"etc/" + unit + ".d/10.conf": "Restart=no", "lib/" + unit + ".d/20.conf": "Restart=always", "etc/" + unit: ""}, syscall.SIGTERM},
		"a drop-in hides another of its name":   {map[string]string{"lib/" + unit: "Restart=always", "lib/" + unit + ".d/1.conf": "Restart=no", "etc/" + unit + ".d/1.conf": ""}, syscall.SIGTERM},
		"a drop-in switches the restart off":    {map[string]string{"lib/" + unit: "Restart=always", "run/" + unit + ".d/1.conf": "Restart=no"}, 0},
		"nothing says that systemd restarts it": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, text := range test.files {
				expect.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o700))
				expect.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
			}
			got, err := signalFor(root)
			expect.Equal(t, "signal", got, test.want)
			expect.True(t, (err == nil) == (test.want != 0), "error: %v", err)
		})
	}
}

// TestSupervisorsHaveSteps wants the page that refusals name, with a row for each service that runs a kubelet of its own.
func TestSupervisorsHaveSteps(t *testing.T) {
	t.Parallel()
	path, anchor, _ := strings.Cut(otherKubelets, "#")
	page := strings.ToLower(expect.File(t, "../../"+path))
	_, section, _ := strings.Cut(page, "\n## "+strings.ReplaceAll(anchor, "-", " ")+"\n")
	rows, _, _ := strings.Cut(section, "\n### ")
	for prefix := range supervisors {
		row := regexp.MustCompile(`(?m)^\|[^|]*\b` + strings.TrimPrefix(prefix, "snap.") + `\b`)
		expect.True(t, row.MatchString(rows), "no row for %s", prefix)
	}
}
