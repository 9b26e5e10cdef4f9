// Command image builds the manager's image without a container engine and without a registry. Each platform has a
// static binary and nothing else. All platforms are in one archive, which is both an OCI layout and a docker archive.
// Each platform also has a software bill of materials. The same input gives the same bytes. `make image` runs it.
// With -sbom it only writes the bill of another program.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// name is the repository's name. Without a registry, containerd reads it as docker.io/library/csr-controller-manager.
const name = "csr-controller-manager"

// platforms are the platforms of the image. docker load without containerd's image store uses one platform per name:
// the first.
var platforms = []string{"amd64", "arm64"}

// settings are the flags, and the time from the environment.
type settings struct {
	root, out, version, revision, program string
	tags                                  []string
	created                               time.Time
}

func main() {
	var s settings
	var tags string
	flag.StringVar(&s.root, "root", ".", "folder of the module to build")
	flag.StringVar(&s.out, "out", "bin/image", "folder to write to")
	flag.StringVar(&s.version, "version", "dev", "what the binary calls itself")
	flag.StringVar(&s.revision, "revision", "", "commit, for the labels")
	flag.StringVar(&tags, "tags", "", "more tags beside the version, separated by commas")
	flag.StringVar(&s.program, "sbom", "", "Go program: write only its bill, to the file -out")
	flag.Parse()
	s.tags = []string{s.version}
	for tag := range strings.SplitSeq(tags, ",") {
		if tag != "" && !slices.Contains(s.tags, tag) {
			s.tags = append(s.tags, tag)
		}
	}
	err := s.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func (s settings) run() error {
	err := s.checkTags()
	if err != nil {
		return err
	}
	if s.created, err = sourceDate(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	if s.program != "" {
		return s.bill(s.program, s.out)
	}
	work, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	return errors.Join(s.write(work), os.RemoveAll(work))
}

// sourceDate returns the time of everything in the image: reproducible-builds.org/specs/source-date-epoch.
func sourceDate(text string) (time.Time, error) {
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// write builds in work and writes the results to s.out.
func (s settings) write(work string) error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	var built []platformImage
	for _, arch := range platforms {
		binary := filepath.Join(work, arch)
		if err := s.compile(arch, binary); err != nil {
			return err
		}
		if err := s.bill(binary, filepath.Join(s.out, fmt.Sprintf("%s-linux-%s.cdx.json", name, arch))); err != nil {
			return err
		}
		img, err := s.image(arch, binary)
		if err != nil {
			return err
		}
		built = append(built, platformImage{arch, img})
	}
	digest, err := s.archive(built, filepath.Join(work, "layout"), filepath.Join(s.out, name+".tar"))
	if err != nil {
		return err
	}
	fmt.Printf("%s.tar: %s:%s, %s\n", filepath.Join(s.out, name), name, strings.Join(s.tags, ", "), digest)
	return nil
}
