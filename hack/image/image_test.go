package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	registry "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const root = "../.."

// built is the folder of one build of this module, for all tests.
var built string

func TestMain(m *testing.M) {
	code, err := 1, os.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if err == nil {
		built, err = os.MkdirTemp("", "image-test-")
	}
	if err == nil {
		err = build(root, built).run()
	}
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, os.RemoveAll(built)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	succeed(t, err)
	return string(data)
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func build(from, to string) settings {
	return settings{root: from, out: to, version: "v1.2.3", revision: "abc", tags: []string{"v1.2.3", "dev"}}
}

// TestReproducible builds a copy of the sources in another folder and at another time, without what .dockerignore takes out of the
// context of the Dockerfile.
func TestReproducible(t *testing.T) {
	copied, out := t.TempDir(), t.TempDir()
	if output, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack/copy.sh"), copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	ignored := regexp.MustCompile(`(?m)^[^#*\n]+$`).FindAllString(read(t, filepath.Join(root, ".dockerignore")), -1)
	if len(ignored) < 5 {
		t.Fatalf("ignored: %q", ignored)
	}
	for _, entry := range ignored {
		succeed(t, os.RemoveAll(filepath.Join(copied, entry)))
	}
	succeed(t, build(copied, out).run())
	entries, err := os.ReadDir(built)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, error %v", entries, err)
	}
	for _, entry := range entries {
		if read(t, filepath.Join(built, entry.Name())) != read(t, filepath.Join(out, entry.Name())) {
			t.Errorf("%s differs", entry.Name())
		}
	}
}

// TestDockerArchive reads the archive as docker load does. Each tag is one platform's image, and each image has two
// tags.
func TestDockerArchive(t *testing.T) {
	t.Parallel()
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(filepath.Join(built, name+".tar")) })
	succeed(t, err)
	for i, want := range [][]string{
		{"csr-controller-manager:v1.2.3", "csr-controller-manager:dev"},
		{"csr-controller-manager:v1.2.3-arm64", "csr-controller-manager:dev-arm64"},
	} {
		if !slices.Equal(manifest[i].RepoTags, want) {
			t.Errorf("tags %q, want %q", manifest[i].RepoTags, want)
		}
	}
	for tag, arch := range map[string]string{"v1.2.3": "amd64", "dev-arm64": "arm64"} {
		ref, err := registry.NewTag(name + ":" + tag)
		succeed(t, err)
		img, err := tarball.ImageFromPath(filepath.Join(built, name+".tar"), &ref)
		succeed(t, err)
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", tag, err)
		}
		check(t, img, arch)
	}
}

// TestLayout reads the archive as containerd does.
func TestLayout(t *testing.T) {
	t.Parallel()
	index, err := layout.ImageIndexFromPath(unpack(t))
	succeed(t, err)
	top, err := index.IndexManifest()
	succeed(t, err)
	var names []string
	for i, manifest := range top.Manifests {
		names = append(names, manifest.Annotations["io.containerd.image.name"])
		if i > 0 { // the same index with another name
			if manifest.Digest != top.Manifests[0].Digest {
				t.Errorf("%s is another index", manifest.Annotations)
			}
			continue
		}
		both, err := index.ImageIndex(manifest.Digest)
		succeed(t, err)
		if err := validate.Index(both); err != nil {
			t.Error(err)
		}
		platforms, err := both.IndexManifest()
		succeed(t, err)
		for i, arch := range []string{"amd64", "arm64"} {
			if got := platforms.Manifests[i].Platform.String(); got != "linux/"+arch {
				t.Errorf("platform %s, want linux/%s", got, arch)
			}
			img, err := both.Image(platforms.Manifests[i].Digest)
			succeed(t, err)
			check(t, img, arch)
		}
	}
	if want := []string{"docker.io/library/csr-controller-manager:v1.2.3", "docker.io/library/csr-controller-manager:dev"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}

// check checks the entry point, the user, and that the image contains nothing else than a static binary that knows its version.
func check(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	file, err := img.ConfigFile()
	succeed(t, err)
	run := fmt.Sprint(file.OS, " ", file.Architecture, " ", file.Config.User, " ", file.Config.Entrypoint, " ", file.Created.Unix())
	if want := "linux " + arch + " 65532:65532 [/csr-controller-manager] 1700000000"; run != want {
		t.Errorf("%s, want %s", run, want)
	}
	if got := file.Config.Labels["org.opencontainers.image.version"] + file.Config.Labels["org.opencontainers.image.revision"]; got != "v1.2.3abc" {
		t.Errorf("labels %v", file.Config.Labels)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, error %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	succeed(t, err)
	defer func() { _ = content.Close() }()
	in := tar.NewReader(content)
	header, err := in.Next()
	succeed(t, err)
	if header.Name != "csr-controller-manager" || header.Mode != 0o755 || header.Uid != 0 || header.Gid != 0 || header.Typeflag != tar.TypeReg {
		t.Errorf("%+v", header)
	}
	binary, err := io.ReadAll(in)
	succeed(t, err)
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than the binary: %v", err)
	}
	program, err := elf.NewFile(bytes.NewReader(binary))
	succeed(t, err)
	isInterpreted := func(part *elf.Prog) bool { return part.Type == elf.PT_INTERP }
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if program.Machine != want || slices.ContainsFunc(program.Progs, isInterpreted) {
		t.Errorf("a binary for %s, want a static one for %s", program.Machine, want)
	}
	if arch != runtime.GOARCH {
		return
	}
	path := filepath.Join(t.TempDir(), "binary")
	succeed(t, os.WriteFile(path, binary, 0o700))
	if output, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput(); err != nil || string(output) != "csr-controller-manager v1.2.3\n" {
		t.Errorf("--version: %s, error %v", output, err)
	}
}

// unpack unpacks the archive. Every file must belong to root, be readable, and be as old as the sources.
func unpack(t *testing.T) string {
	t.Helper()
	file, err := os.Open(filepath.Join(built, name+".tar"))
	succeed(t, err)
	defer func() { _ = file.Close() }()
	dir := t.TempDir()
	for in := tar.NewReader(file); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		succeed(t, err)
		if header.Mode != 0o644 || header.Uid != 0 || header.Gid != 0 || header.Uname != "" || header.ModTime.Unix() != 1700000000 {
			t.Errorf("%+v", header)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		data, err := io.ReadAll(in)
		succeed(t, errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)))
	}
}

// TestBill compares the bill with the go command's list of the modules in a binary of the same sources.
func TestBill(t *testing.T) {
	t.Parallel()
	for _, arch := range platforms {
		file, err := os.Open(filepath.Join(built, name+"-linux-"+arch+".cdx.json"))
		succeed(t, err)
		var bill cyclonedx.BOM
		succeed(t, errors.Join(cyclonedx.NewBOMDecoder(file, cyclonedx.BOMFileFormatJSON).Decode(&bill), file.Close()))
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", ".")
		list.Dir = root
		list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		output, err := list.Output()
		succeed(t, err)
		want := append(strings.Fields(string(output)), "std@"+strings.TrimPrefix(runtime.Version(), "go"))
		slices.Sort(want)
		var got []string
		for _, component := range *bill.Components {
			got = append(got, component.Name+"@"+component.Version)
			url := "pkg:golang/" + strings.ReplaceAll(component.Name+"@"+component.Version, "+", "%2B")
			if component.Name != "std" && component.PackageURL != url {
				t.Errorf("package URL %s", component.PackageURL)
			}
		}
		slices.Sort(got)
		if want = slices.Compact(want); !slices.Equal(got, want) {
			t.Errorf("%s: components %q, want %q", arch, got, want)
		}
		if main := bill.Metadata.Component; main.Version != "v1.2.3" || len(*main.Hashes) != 1 {
			t.Errorf("%+v", main)
		}
	}
}

// TestBillOfAnotherProgram writes the bill of the go command, whose package has another path than its module.
func TestBillOfAnotherProgram(t *testing.T) {
	t.Parallel()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	succeed(t, err)
	program, out := filepath.Join(strings.TrimSpace(string(root)), "bin", "go"), filepath.Join(t.TempDir(), "go.cdx.json")
	succeed(t, (settings{version: "v1.2.3", tags: []string{"v1.2.3"}, program: program, out: out}).run())
	text := read(t, out)
	for _, want := range []string{`"pkg:golang/cmd/go@v1.2.3"`, `"name": "std"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the bill has no %s: %.500s", want, text)
		}
	}
}

// TestWrongValues checks that an invalid tag or date is refused, and that without a date the files are as old as 1970.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	if err := (settings{tags: []string{"a b"}}).checkTags(); err == nil {
		t.Error("a tag with a space is accepted")
	}
	if _, err := sourceDate("yesterday"); err == nil {
		t.Error("a date in words is accepted")
	}
	if got, err := sourceDate(""); err != nil || got.Unix() != 0 {
		t.Errorf("%s, error %v", got, err)
	}
}

// TestDockerfile checks, since no container engine is available to build it, that the builder is pinned and may fetch the toolchain of go.mod, and
// that the image is the image of make image.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := read(t, filepath.Join(root, "Dockerfile"))
	if !regexp.MustCompile(`(?m)^FROM --platform=\$BUILDPLATFORM docker\.io/library/golang:[0-9.]+\S*@sha256:[0-9a-f]{64} AS build$`).MatchString(text) {
		t.Error("the builder is not pinned")
	}
	if strings.Count(text, "\nFROM ") != 2 || !strings.Contains(text, "\nFROM scratch\n") {
		t.Error("there is a stage beside the builder and the empty image")
	}
	for _, line := range []string{"ENV GOTOOLCHAIN=auto", "USER " + user, `ENTRYPOINT ["/` + name + `"]`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for key, value := range (settings{}).labels() {
		if fixed := key + `="` + value + `"`; value != "" && !strings.HasSuffix(key, ".created") && !strings.Contains(text, fixed) {
			t.Errorf("no label %s", fixed)
		}
	}
}
