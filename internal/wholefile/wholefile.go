// Package wholefile replaces files in one step.
package wholefile

import (
	"errors"
	"io/fs"
	"os"
)

// suffix is that of the temporary files. What a crash has left of them is removed, so no user has files of this name.
const suffix = ".csr-new"

// Write replaces the file at path by one with data, so that a reader gets the complete old or new data, even after a power failure.
// prepare sets the mode and owner of the new file, which only its owner may read before.
func Write(path string, data []byte, prepare func(*os.File) error) error {
	temporary := path + suffix
	if err := makeRoom(temporary); err != nil {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, prepare(file), file.Sync(), file.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temporary))
	}
	return err
}

// Link makes path a link to target: without a moment at which there is none.
func Link(target, path string) error {
	temporary := path + suffix
	if err := makeRoom(temporary); err != nil {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// makeRoom removes a temporary file that a crash has left behind.
func makeRoom(temporary string) error {
	if err := os.Remove(temporary); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
