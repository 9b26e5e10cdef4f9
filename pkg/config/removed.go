package config

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// removedFields lists the fields that an earlier version had, with what an administrator does instead.
var removedFields = []struct{ path, instead string }{
	{"cleaning.supersededAfter", "requests are deleted after cleaning.retention.pending; delete this field"},
	{"signing.apiServers", "the signer reads which CAs the API servers trust from the ConfigMaps " +
		"extension-apiserver-authentication and kube-root-ca.crt in kube-system; delete this field"},
}

// checkRemoved returns an error that names every removed field in data, a configuration file. Whatever else is wrong
// with data, the strict decoder reports.
func checkRemoved(data []byte) error {
	var file map[string]any
	if yaml.Unmarshal(data, &file) != nil {
		return nil
	}
	var found []error
	for _, removed := range removedFields {
		if has(file, removed.path) {
			found = append(found, fmt.Errorf("%s was removed: %s", removed.path, removed.instead))
		}
	}
	return errors.Join(found...)
}

// has reports whether file has the field at path, whatever its value.
func has(file map[string]any, path string) bool {
	first, rest, nested := strings.Cut(path, ".")
	value, found := file[first]
	if !found || !nested {
		return found
	}
	inner, _ := value.(map[string]any)
	return has(inner, rest)
}
