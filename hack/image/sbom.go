package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// bill writes the software bill of materials of binary: the modules that the linker recorded in it. These are exactly
// the modules that the binary contains.
func (s settings) bill(binary, path string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	bom := s.bom(info, sha256.Sum256(data))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	err = cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return errors.Join(err, file.Close())
}

func (s settings) bom(info *buildinfo.BuildInfo, sum [sha256.Size]byte) *cyclonedx.BOM {
	main := component(cyclonedx.ComponentTypeApplication, info.Path, s.version)
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}}
	main.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	parts := []cyclonedx.Component{component(cyclonedx.ComponentTypeLibrary, "std",
		strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		parts = append(parts, part(module))
	}
	var refs []string
	dependencies := make([]cyclonedx.Dependency, 1, len(parts)+1)
	for _, each := range parts {
		refs = append(refs, each.BOMRef)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: each.BOMRef})
	}
	dependencies[0] = cyclonedx.Dependency{Ref: main.BOMRef, Dependencies: &refs}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serial(sum)
	bom.Metadata = &cyclonedx.Metadata{Timestamp: s.created.Format(time.RFC3339), Component: &main,
		Properties: properties(info)}
	bom.Components, bom.Dependencies = &parts, &dependencies
	return bom
}

// serial returns a UUID of version 8 (RFC 9562, section 5.8). It is not random, so that the same binary has the same
// bill.
func serial(sum [sha256.Size]byte) string {
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// properties returns the settings of the build that determine the content of the binary.
func properties(info *buildinfo.BuildInfo) *[]cyclonedx.Property {
	var found []cyclonedx.Property
	for _, setting := range info.Settings {
		switch setting.Key {
		case "CGO_ENABLED", "GOARCH", "GOOS", "GOAMD64", "GOARM64", "GOFIPS140":
			found = append(found, cyclonedx.Property{Name: "go:" + setting.Key, Value: setting.Value})
		}
	}
	return &found
}

// part returns a module, or its replacement.
func part(module *debug.Module) cyclonedx.Component {
	if module.Replace != nil {
		module = module.Replace
	}
	found := component(cyclonedx.ComponentTypeLibrary, module.Path, module.Version)
	if module.Sum != "" { // of the module's tree, as in go.sum: not the hash of a file, so CycloneDX has no field for it
		found.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: module.Sum}}
	}
	return found
}

func component(kind cyclonedx.ComponentType, path, version string) cyclonedx.Component {
	url := fmt.Sprintf("pkg:golang/%s@%s", path, strings.ReplaceAll(version, "+", "%2B"))
	return cyclonedx.Component{Type: kind, BOMRef: url, Name: path, Version: version, PackageURL: url}
}
