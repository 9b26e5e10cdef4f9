package commands

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// trustFileMark is the first line of a file that write-trust has made. PEM may have text before and between its blocks
// (RFC 7468, section 2), and client-go's cert.ParseCertsPEM passes over it.
const trustFileMark = "# Kept by csr-controller-manager write-trust: it replaces what is changed here.\n"

// maxBundle is a ConfigMap's limit.
const maxBundle = 1 << 20

// read returns the certificates of all files, each once, and their number. It is an error if from holds a certificate that
// accept does not list. The files of also are not compared: a person has put them on this host.
func (o trustFileOptions) read() ([]byte, int, error) {
	bundle, seen := []byte(trustFileMark), map[string]bool{}
	for i, file := range slices.Concat([]string{o.from}, o.also) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, err
		}
		certs, err := readBundle(data)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", file, err)
		}
		for _, cert := range certs {
			sum := sha256.Sum256(cert.Raw)
			if fingerprint := hex.EncodeToString(sum[:]); i == 0 && len(o.accept) > 0 && !slices.Contains(o.accept, fingerprint) {
				return nil, 0, fmt.Errorf("%s: the CA %s is not accepted: if it is yours, start write-trust with --accept %s too",
					file, strconv.QuoteToASCII(cert.Subject.CommonName), fingerprint)
			}
			if seen[string(cert.Raw)] {
				continue
			}
			seen[string(cert.Raw)] = true
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	return bundle, len(seen), nil
}

// readBundle are the CAs in data: at least one, and nothing else. A key in it would be for everybody to read.
func readBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("%d bytes are too many", len(data))
	}
	var certs []*x509.Certificate
	begun := bytes.Count(data, []byte("-----BEGIN ")) // Decode passes over a block that it can't read
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("has a block %q, and only certificates belong there", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d, %s, is not a CA's", len(certs)+1, cert.Subject)
		}
		certs, data = append(certs, cert), rest
	}
	switch {
	case begun != len(certs):
		return nil, fmt.Errorf("%d of %d certificates can't be read", begun-len(certs), begun)
	case len(certs) == 0:
		return nil, errors.New("holds no certificate")
	}
	return certs, nil
}

// replaceTrustFile makes path hold data, and says whether it did not. Whoever reads path gets the one or the other as a
// whole, even after a loss of power. It is an error if path is something that write-trust has not made.
func replaceTrustFile(path string, data []byte) (written bool, err error) {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case !found.Mode().IsRegular():
		return false, fmt.Errorf("%s is no plain file: another --to, please", path)
	default:
		held, err := os.ReadFile(path)
		switch {
		case err != nil:
			return false, err
		case !bytes.HasPrefix(held, []byte(trustFileMark)):
			return false, fmt.Errorf("%s was not made by write-trust: move it away, or choose another --to", path)
		case bytes.Equal(held, data) && found.Mode().Perm() == 0o644:
			return false, nil
		}
	}
	if err := writeWhole(path, data); err != nil {
		return false, err
	}
	return true, nil
}

// writeWhole writes a file beside path, and then gives it that name.
func writeWhole(path string, data []byte) error {
	temporary := path + ".new" // one that was left by a crash is overwritten
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
