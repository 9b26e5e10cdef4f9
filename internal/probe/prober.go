// Package probe finds out whether an API server accepts the client certificates of a CA, by showing it one. It decides
// nothing from errors: what could not be asked is Unknown.
package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

const (
	// atOnce bounds how many servers are asked at the same time.
	atOnce = 16
	// margin is how long before its end, by our clock, a certificate is not relied on any more. That clocks differ by more
	// is what the certificate of the CA that signs is for, in Refuse.
	margin = time.Minute
	// renewBefore is how long before its end a certificate is replaced: time for two questions, and the margin.
	renewBefore = margin + 2*timeout
)

// Prober asks servers whether they accept client certificates of a CA. It keeps the certificates that it shows for as
// long as they are certainly valid, so that a few minutes of questions are one issuance. It is safe for concurrent use.
type Prober struct {
	Audit *audit.Log // gets a record of each certificate
	Clock clock.PassiveClock

	mu     sync.Mutex
	minted map[string]*Certificate // by the CA's certificate and what follows a leaf of it
}

// Recognise asks each of targets, all at once, whether it accepts what authority issues.
func (p *Prober) Recognise(ctx context.Context, authority *ca.Authority, targets []Target) Round {
	shown, err := p.certificates(ctx, authority)
	return p.round(targets, func(target Target) Answer {
		if err != nil {
			return Answer{Evidence: fmt.Sprintf("no certificate to ask with: %v", err)}
		}
		return p.ask(ctx, shown[0], target)
	})
}

// Refuse asks each of targets, all at once, whether it refuses what retiring issues. It counts as Refused only when the
// same server then recognises a certificate of signing that is valid for no longer: it was not refused for its time,
// nor because everything is.
func (p *Prober) Refuse(ctx context.Context, retiring, signing *ca.Authority, targets []Target) Round {
	shown, err := p.certificates(ctx, retiring, signing)
	return p.round(targets, func(target Target) Answer {
		if err != nil {
			return Answer{Evidence: fmt.Sprintf("no certificates to ask with: %v", err)}
		}
		answer := p.ask(ctx, shown[0], target)
		if answer.Trust != Refused {
			return answer
		}
		if control := p.ask(ctx, shown[1], target); control.Trust != Recognised {
			return Answer{Evidence: fmt.Sprintf(
				"%s; but that proves nothing, as the CA that signs now is not known to be accepted: %s",
				answer.Evidence, control.Evidence)}
		}
		return answer
	})
}

// ask shows one to target. Only an answer that was had while it was certainly valid counts.
func (p *Prober) ask(ctx context.Context, one *Certificate, target Target) Answer {
	answer := one.AskTarget(ctx, target)
	if now := p.Clock.Now(); answer.Trust != Unknown && !one.validAt(now.Add(margin)) {
		return Answer{Evidence: fmt.Sprintf("%s; but at %s, when the certificate could not be relied on to be valid",
			answer.Evidence, now.UTC().Format(time.RFC3339))}
	}
	return answer
}

// certificates are one of each of authorities, none of which is valid for longer than that of the first.
func (p *Prober) certificates(ctx context.Context, authorities ...*ca.Authority) ([]*Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Clock.Now()
	maps.DeleteFunc(p.minted, func(_ string, one *Certificate) bool { return !one.validAt(now.Add(renewBefore)) })
	kept := make([]*Certificate, len(authorities))
	whole := true
	for i, authority := range authorities {
		kept[i] = p.minted[kindOf(authority)]
		whole = whole && kept[i] != nil && kept[i].within(kept[0])
	}
	if whole {
		return kept, nil
	}
	if end := authorities[0].NotAfter(); end.Before(now.Add(lifetime)) {
		return nil, fmt.Errorf("the CA itself ends at %s, and could be refused for that", end.UTC().Format(time.RFC3339))
	}
	for i, authority := range authorities {
		one, err := Mint(ctx, authority, p.Audit, now)
		if err != nil {
			return nil, err
		}
		if p.minted == nil {
			p.minted = map[string]*Certificate{}
		}
		kept[i], p.minted[kindOf(authority)] = one, one
	}
	return kept, nil
}

// kindOf tells certificates of one authority, which come with the same chain, from others.
func kindOf(authority *ca.Authority) string {
	return string(authority.CertificatePEM()) + "\n" + string(authority.AppendedPEM())
}

// validAt reports whether c is valid at now.
func (c *Certificate) validAt(now time.Time) bool {
	return now.After(c.NotBefore) && now.Before(c.NotAfter)
}

// within reports whether other is valid whenever c is.
func (c *Certificate) within(other *Certificate) bool {
	return !c.NotBefore.Before(other.NotBefore) && !c.NotAfter.After(other.NotAfter)
}

// round asks all targets.
func (p *Prober) round(targets []Target, ask func(Target) Answer) Round {
	round := Round{Answers: make(map[string]Answer, len(targets))}
	var mu sync.Mutex
	var asked sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, target := range targets {
		free <- struct{}{}
		asked.Go(func() {
			defer func() { <-free }()
			answer := ask(target)
			mu.Lock()
			defer mu.Unlock()
			round.Answers[target.Name] = answer
		})
	}
	asked.Wait()
	round.At = p.Clock.Now()
	return round
}

// SubjectPrefix begins the common name of every probe. Nothing may be granted to such a user.
const SubjectPrefix = "csr-controller-manager.io:trust-probe:"

// lifetime and ca.Backdate together are the ten minutes that a probe is valid at most.
const lifetime = 10*time.Minute - ca.Backdate

// Certificate is a client certificate for a subject of our own, without a group and without rights.
type Certificate struct {
	// Subject is its common name, which no other certificate has.
	Subject string
	// ID is how the API server names it in a user's extra, under credentialID.
	ID string
	// NotBefore is from when on it can be used, and NotAfter when it can't be any more.
	NotBefore, NotAfter time.Time

	certPEM, keyPEM []byte
}

// Mint issues a Certificate by authority, valid from ca.Backdate before now on, and writes it to log before it returns.
func Mint(ctx context.Context, authority *ca.Authority, log *audit.Log, now time.Time) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	random := make([]byte, 8) // a longer name would pass X.520's bound of 64 letters
	_, _ = rand.Read(random)  // never fails
	request := ca.Request{
		PublicKey:   key.Public(),
		Subject:     pkix.Name{CommonName: SubjectPrefix + hex.EncodeToString(random)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime})
	if err != nil {
		return nil, err
	}
	issued, err := authority.Issue(profile, request, now.Truncate(time.Second)) // as a certificate has it
	if err != nil {
		return nil, fmt.Errorf("issue a trust probe: %w", err)
	}
	cert, err := record(ctx, authority, log, now, issued)
	if err != nil {
		return nil, err
	}
	cert.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return cert, nil
}

// record writes what was issued to log.
func record(
	ctx context.Context, authority *ca.Authority, log *audit.Log, now time.Time, issued *ca.Issued,
) (*Certificate, error) {
	block, _ := pem.Decode(issued.PEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read trust probe: %w", err)
	}
	key := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	log.Write(ctx, now, audit.TrustProbe, audit.Record{
		Subject:     leaf.Subject.String(),
		Usages:      []string{"digital signature", "client auth"},
		KeySHA256:   hex.EncodeToString(key[:]),
		Serial:      issued.Serial.Text(16),
		IssuerKeyID: authority.KeyID(),
		NotBefore:   &issued.NotBefore,
		NotAfter:    &issued.NotAfter,
	})
	fingerprint := sha256.Sum256(leaf.Raw)
	return &Certificate{
		Subject:   leaf.Subject.CommonName,
		ID:        "X509SHA256=" + hex.EncodeToString(fingerprint[:]),
		NotBefore: leaf.NotBefore,
		NotAfter:  leaf.NotAfter,
		certPEM:   issued.PEM,
	}, nil
}
