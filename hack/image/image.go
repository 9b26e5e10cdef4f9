package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user belongs to no user of a node, and needs no /etc/passwd.
const user = "65532:65532"

// compile builds the static binary for linux on arch. It fixes the paths, the state of the repository and the level
// of the architecture, so that two builds give the same binary.
func (s settings) compile(arch, out string) error {
	absolute, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+s.version,
		"-o", absolute, ".")
	build.Dir = s.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s: %w\n%s", arch, err, output)
	}
	return nil
}

// image returns an image with only the binary.
func (s settings) image(arch, binary string) (v1.Image, error) {
	data, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	content, err := s.tarOf(data)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{
		CreatedBy: "make image", Created: v1.Time{Time: s.created},
	}})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: s.created}
	file.Config = v1.Config{User: user, Entrypoint: []string{"/" + name}, WorkingDir: "/", Labels: s.labels()}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, s.labels()).(v1.Image), nil
}

// tarOf returns a layer with only the binary, owned by root and executable by all users.
func (s settings) tarOf(data []byte) ([]byte, error) {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o755, ModTime: s.created, Format: tar.FormatUSTAR,
	}
	if err := out.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := out.Write(data); err != nil {
		return nil, err
	}
	return layer.Bytes(), out.Close()
}

// labels returns the labels of OCI (image-spec, annotations.md).
func (s settings) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       name,
		"org.opencontainers.image.description": "Approves, signs and cleans Kubernetes CertificateSigningRequests",
		"org.opencontainers.image.source":      "https://github.com/csr-controller-manager/csr-controller-manager",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.created":     s.created.Format(time.RFC3339),
	}
	if s.revision != "" {
		labels["org.opencontainers.image.revision"] = s.revision
	}
	return labels
}
