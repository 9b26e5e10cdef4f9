package plugin

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: a new file has the rights of its folder.
func keepOwner(*os.File, fs.FileInfo) error { return nil }

// refuseForeign refuses nothing: the command acts with the rights of its user.
func refuseForeign(string) error { return nil }
