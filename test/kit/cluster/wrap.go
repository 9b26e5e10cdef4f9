package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// wrapper writes the process ID of a binary to $DIR, for the guard, and then executes the binary.
const wrapper = "#!/bin/sh\necho $$ > %s\nexec %s \"$@\"\n"

// wrap writes a script in dir that runs the binary of that name in KUBEBUILDER_ASSETS, and returns its path.
func wrap(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	script := fmt.Sprintf(wrapper, quote(path+".pid"), quote(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name)))
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// quote quotes text as one word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
