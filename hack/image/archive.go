package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	registry "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platformImage is the image for one architecture.
type platformImage struct {
	arch string
	v1.Image
}

// archive writes the images to path: an OCI layout, for containerd and other OCI tools, with docker's manifest.json
// for the same blobs. It returns the digest of the index.
func (s settings) archive(images []platformImage, dir, path string) (digest v1.Hash, err error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: img.arch}},
		})
	}
	index = mutate.Annotations(index, s.labels()).(v1.ImageIndex)
	if digest, err = index.Digest(); err != nil {
		return digest, err
	}
	if err := s.layout(index, dir); err != nil {
		return digest, err
	}
	manifest, err := s.dockerManifest(images)
	if err != nil {
		return digest, err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o644); err != nil {
		return digest, err
	}
	return digest, s.pack(dir, path)
}

// prefix is the prefix that containerd adds to a name without a registry.
const prefix = "docker.io/library/"

// checkTags returns an error for an invalid tag.
func (s settings) checkTags() error {
	for _, tag := range s.tags {
		if _, err := registry.NewTag(prefix+name+":"+tag, registry.StrictValidation); err != nil {
			return err
		}
	}
	return nil
}

// layout writes the OCI layout, in which each tag is a name of the index.
func (s settings) layout(index v1.ImageIndex, dir string) error {
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := to.WriteIndex(index); err != nil {
		return err
	}
	descriptor, err := partial.Descriptor(index)
	if err != nil {
		return err
	}
	for _, tag := range s.tags {
		named := *descriptor.DeepCopy()
		named.Annotations = map[string]string{ // containerd reads the first, other tools the second
			"io.containerd.image.name":          prefix + name + ":" + tag,
			"org.opencontainers.image.ref.name": tag,
		}
		if err := to.AppendDescriptor(named); err != nil {
			return err
		}
	}
	return nil
}

// dockerManifest returns the manifest that docker load reads without a containerd image store. It has one platform
// per name. So the first platform has the plain tags, and each other platform has its architecture in the tag.
func (s settings) dockerManifest(images []platformImage) ([]byte, error) {
	var manifest tarball.Manifest
	for i, img := range images {
		config, err := img.ConfigName()
		if err != nil {
			return nil, err
		}
		layers, err := img.Layers()
		if err != nil {
			return nil, err
		}
		one := tarball.Descriptor{Config: blob(config)}
		for _, layer := range layers {
			digest, err := layer.Digest()
			if err != nil {
				return nil, err
			}
			one.Layers = append(one.Layers, blob(digest))
		}
		for _, tag := range s.tags {
			if i > 0 {
				tag += "-" + img.arch
			}
			one.RepoTags = append(one.RepoTags, name+":"+tag)
		}
		manifest = append(manifest, one)
	}
	return json.Marshal(manifest)
}

func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// pack writes the files in dir to an archive, in the order of their names, without their owner and age.
func (s settings) pack(dir, path string) (err error) {
	file, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	out := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return s.add(out, dir, path)
	})
	if err := errors.Join(err, out.Close(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), path)
}

func (s settings) add(out *tar.Writer, dir, path string) error {
	relative, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: filepath.ToSlash(relative), Size: info.Size(), Mode: 0o644,
		ModTime: s.created, Format: tar.FormatUSTAR,
	}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("%s: %w", relative, err)
	}
	return nil
}
