//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
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

// binary returns the path of a program of the control plane.
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

// buildImages builds our own images while there is still a network to download from.
func buildImages(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "images"), 0o700); err != nil {
		return err
	}
	program := filepath.Join(dir, "images", "pause")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build pause: %w\n%s", err, output)
	}
	return writeArchive(pauseArchive(dir), pauseImage, program)
}

// writeArchive writes an image with one static program, as docker save does.
func writeArchive(path, name, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := tarOf(file{filepath.Base(program), data})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + filepath.Base(program)}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	archive, err := tarOf(file{"layer.tar", layer}, file{"config.json", config}, file{"manifest.json", manifest})
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o600)
}

type file struct {
	name string
	data []byte
}

func tarOf(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, one := range files {
		if err := w.WriteHeader(&tar.Header{Name: one.name, Mode: 0o755, Size: int64(len(one.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(one.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
