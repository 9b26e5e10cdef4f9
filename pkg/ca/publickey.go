package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"fmt"
	"math"
)

const (
	// MaxRSABits is the longest RSA key that is verified or signed: twice the length costs four times the time or more.
	// crypto/tls refuses longer ones too.
	MaxRSABits = 8192

	// PermittedKeys says which keys a certificate can be for.
	PermittedKeys = "use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
)

// CheckKey returns why nothing is ever signed for the public key, or nil. It does no arithmetic on the key, so that it can
// run before a signature is verified with it.
func CheckKey(public crypto.PublicKey) *Violation {
	refuse := func(format string, args ...any) *Violation {
		return &Violation{Reason: "KeyNotPermitted", Message: fmt.Sprintf(format, args...) + "; " + PermittedKeys}
	}
	switch key := public.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits > MaxRSABits {
			return refuse("RSA keys of %d bits are not permitted", bits)
		}
		// crypto/rsa accepts no others; 1 would leave every message as it is.
		if key.E < 3 || key.E%2 == 0 || key.E > math.MaxInt32 {
			return refuse("RSA keys with the public exponent %d are not permitted", key.E)
		}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
		default:
			return refuse("ECDSA keys on the curve %s are not permitted", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return refuse("public keys of type %T are not permitted", public)
	}
	return nil
}

// checkKey is CheckKey, and refuses RSA keys that are shorter than p permits.
func (p Profile) checkKey(public crypto.PublicKey) *Violation {
	if violation := CheckKey(public); violation != nil {
		return violation
	}
	key, isRSA := public.(*rsa.PublicKey)
	if !isRSA || key.N.BitLen() >= p.config.MinRSABits {
		return nil
	}
	return &Violation{
		Reason:  "KeyTooWeak",
		Message: fmt.Sprintf("RSA key of %d bits is too weak: at least %d bits are needed", key.N.BitLen(), p.config.MinRSABits),
	}
}
