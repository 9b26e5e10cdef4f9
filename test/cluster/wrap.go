package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// wrapper notes the process id of a binary in $DIR, so that the guard knows it, and becomes it.
const wrapper = "#!/bin/sh\necho $$ > %s\nexec %s \"$@\"\n"

// wrap returns the path of a script in dir that runs the binary of that name in KUBEBUILDER_ASSETS.
func wrap(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	script := fmt.Sprintf(wrapper, quote(path+".pid"), quote(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name)))
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// quote makes one word of the shell's of text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
