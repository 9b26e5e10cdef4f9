package ca

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// parsePrivateKey returns the first private key in data: PKCS#1 (RFC 8017), SEC 1 (RFC 5915) or PKCS#8 (RFC 5958).
// Other blocks, such as EC PARAMETERS or certificates, may stand before it. Key bytes never reach an error.
func parsePrivateKey(data []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		if strings.HasPrefix(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("the private key is encrypted: store it without a passphrase")
		}
		key := parseKeyBlock(block.Bytes)
		if key == nil {
			return nil, fmt.Errorf("PEM block of type %s holds no private key in PKCS#1, PKCS#8 or SEC 1", block.Type)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a private key of type %T cannot sign", key)
		}
		return signer, nil
	}
}

// parseKeyBlock tries every encoding, as the label of the block is often wrong, or returns nil.
func parseKeyBlock(der []byte) any {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key
	}
	return nil
}
