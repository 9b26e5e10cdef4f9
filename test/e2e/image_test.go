//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// The images that only we build, by their names in containerd.
const (
	pauseImage     = "docker.io/e2e/pause:local"
	etcdImage      = "docker.io/e2e/etcd:local"
	apiServerImage = "docker.io/e2e/kube-apiserver:local"
)

// root is the module's root. Tests run in the folder of their package.
const root = "../.."

func binary(name string) string {
	switch name {
	case "etcd", "kube-apiserver", "kubectl":
		if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
			return filepath.Join(assets, name)
		}
	}
	return filepath.Join(os.Getenv("CONTROLPLANE"), name)
}

// managerImage returns the archive that make image writes, or E2E_IMAGE.
func managerImage() string {
	if path := os.Getenv("E2E_IMAGE"); path != "" {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, "bin/image/csr-controller-manager.tar"))
	if err != nil {
		panic(err) // the working directory does not exist
	}
	return path
}

func pauseArchive(dir string) string { return filepath.Join(dir, "images", "pause.tar") }

func buildPause(dir string) error {
	program := filepath.Join(dir, "images", "pause")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := run(build); err != nil {
		return err
	}
	return writeArchive(pauseArchive(dir), pauseImage, program)
}

// writeArchive writes an image with one static program, as docker save does.
func writeArchive(path, name, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	base := filepath.Base(program)
	layer := tarOf(map[string][]byte{base: data})
	return os.WriteFile(path, tarOf(map[string][]byte{
		"layer.tar": layer,
		"config.json": fmt.Appendf(nil, `{"architecture": %q, "os": "linux", "config": {"Entrypoint": ["/%s"], "Env": ["PATH=/"]},
  "rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, runtime.GOARCH, base, sha256.Sum256(layer)),
		"manifest.json": fmt.Appendf(nil, `[{"Config": "config.json", "RepoTags": [%q], "Layers": ["layer.tar"]}]`, name),
	}), 0o600)
}

func tarOf(files map[string][]byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}) // a buffer takes everything
		_, _ = w.Write(data)
	}
	_ = w.Close()
	return out.Bytes()
}
