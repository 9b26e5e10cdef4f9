// Package webhook is the inventory source that asks a server over HTTPS.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// The API version and kind of requests and responses.
const (
	lookupVersion = "inventory.csr-controller-manager.io/v1alpha1"
	lookupKind    = "NodeLookup"
)

// Limits of a lookup.
const (
	defaultTimeout = 5 * time.Second
	maxTimeout     = 30 * time.Second
	maxAnswer      = 64 << 10
	maxLookups     = 32
)

// Options configure the server to ask.
type Options struct {
	// URL must begin with https.
	URL string
	// CAFile holds the CAs of the server's certificate. No other CA is trusted.
	CAFile string
	// CertFile and KeyFile, if set, hold the client certificate. All files may change at any time.
	CertFile, KeyFile string
	// Timeout bounds a lookup as a whole. Zero means five seconds.
	Timeout time.Duration
}

var _ inventory.Slow = &Source{}

// Source is the inventory source that asks a server.
type Source struct{ options Options }

// New returns a Source, or an error that joins all mistakes in options. It does not read the files.
func New(options Options) (*Source, error) {
	errs := []error{checkURL(options.URL)}
	if options.CAFile == "" {
		errs = append(errs, errors.New("caFile: set the file with the CA of the server"))
	}
	if (options.CertFile == "") != (options.KeyFile == "") {
		errs = append(errs, errors.New("certFile, keyFile: set both or none"))
	}
	if options.Timeout < 0 || options.Timeout > maxTimeout {
		errs = append(errs, fmt.Errorf("timeout: %s: want up to %s", options.Timeout, maxTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	options.Timeout = cmp.Or(options.Timeout, defaultTimeout)
	return &Source{options}, nil
}

// checkURL returns why text is no valid URL for a webhook, or nil.
func checkURL(text string) error {
	// The error of url.Parse would show the text, which may hold a password.
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("url: invalid URL")
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("url: want https://HOST")
	case u.User != nil || u.Fragment != "":
		return errors.New("url: must not contain a user or a fragment; authenticate with a client certificate")
	}
	return nil
}

// Name implements inventory.Source.
func (*Source) Name() string { return "webhook" }

// Concurrency implements inventory.Slow.
func (*Source) Concurrency() int { return maxLookups }

// Lookup implements inventory.Source.
func (s *Source) Lookup(ctx context.Context, node string, req *csr.Request) (*inventory.Entry, error) {
	if req == nil || req.UID == "" {
		return nil, errors.New("a lookup needs a request")
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	answer, err := s.post(ctx, nodeLookup{
		APIVersion: lookupVersion, Kind: lookupKind, UID: req.UID, Node: node, SignerName: req.SignerName,
		Requester: requester{
			Username: req.Requester.Username, Groups: append([]string{}, req.Requester.Groups...), UID: req.Requester.UID,
		},
	})
	if err != nil {
		return nil, short(hideURL(err))
	}
	entry, err := readAnswer(answer, node, req.UID)
	return entry, short(err)
}

// hideURL returns err without the host of the URL. Errors of the resolver, of TLS and of connections show it.
func hideURL(err error) error {
	var unresolved *net.DNSError
	var misnamed x509.HostnameError
	var invalid x509.CertificateInvalidError
	var failed *net.OpError
	switch {
	case errors.As(err, &unresolved):
		return fmt.Errorf("the host in the URL can't be resolved: %s", unresolved.Err)
	case errors.As(err, &misnamed):
		return errors.New("the server's certificate is not valid for the host in the URL")
	case errors.As(err, &invalid) && invalid.Reason == x509.CANotAuthorizedForThisName:
		return x509.CertificateInvalidError{Reason: invalid.Reason}
	case errors.As(err, &failed):
		return fmt.Errorf("%s: %w", failed.Op, failed.Err)
	}
	return err
}

// short shortens an error that a server may have made long.
func short(err error) error {
	const most = 512
	if err == nil || len(err.Error()) <= most {
		return err
	}
	return errors.New(csr.ShortenTo(err.Error(), most))
}

// nodeLookup is the request to the webhook.
type nodeLookup struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	UID        types.UID `json:"uid"`
	Node       string    `json:"node"`
	Requester  requester `json:"requester"`
	SignerName string    `json:"signerName"`
}

type requester struct {
	Username string   `json:"username"`
	Groups   []string `json:"groups"`
	UID      string   `json:"uid,omitempty"`
}

// post returns the body of the response. It does without an http.Client, whose errors show the URL and what a redirect
// makes of it.
func (s *Source) post(ctx context.Context, question nodeLookup) ([]byte, error) {
	client, err := s.options.transport()
	if err != nil {
		return nil, err
	}
	body, _ := json.Marshal(question) // it holds only strings
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("invalid URL") // New has checked it; the error would show it
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := client.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK { // a redirect is not followed
		return nil, fmt.Errorf("answered %d, want 200", response.StatusCode)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil {
		err = ctx.Err() // after a timeout, a server may end its response early
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("answered more than %d KiB", maxAnswer>>10)
	}
	return answer, nil
}

// transport returns a transport for one lookup. It reads the files, so a CA that was removed is not trusted in the next
// lookup, and keeps no connection, which could be closed or stalled when the next lookup needs it.
func (o Options) transport() (*http.Transport, error) {
	ca, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", o.CAFile)
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", o.CertFile, o.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Transport{ // without a proxy
		TLSClientConfig:        config,
		DialContext:            (&net.Dialer{Timeout: o.Timeout}).DialContext,
		TLSHandshakeTimeout:    o.Timeout, // a connection may be opened for a lookup that was canceled
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true,
	}, nil
}

// nodeAnswer is the response of the webhook.
type nodeAnswer struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	UID        types.UID  `json:"uid"`
	Node       string     `json:"node"`
	Known      *bool      `json:"known"`
	Names      []string   `json:"names"`
	Addresses  []string   `json:"addresses"`
	Suffixes   []string   `json:"suffixes"`
	Bound      string     `json:"bound"`
	Created    *time.Time `json:"created"`
}

// readAnswer parses the response about node and the request uid. It accepts only a complete and valid response.
func readAnswer(data []byte, node string, uid types.UID) (*inventory.Entry, error) {
	var answer nodeAnswer
	strict, err := strictjson.UnmarshalStrict(data, &answer)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	switch {
	case answer.APIVersion != lookupVersion || answer.Kind != lookupKind:
		return nil, fmt.Errorf("the response is not a %s of %s", lookupKind, lookupVersion)
	case answer.UID != uid:
		return nil, fmt.Errorf("the response is for another request: uid is not %s", uid)
	case answer.Node != node: // one request may need lookups of several nodes
		return nil, fmt.Errorf("the response is for another node: node is not %q", node)
	case answer.Known == nil:
		return nil, errors.New("the response lacks the field known")
	case !*answer.Known:
		if len(answer.Names)+len(answer.Addresses)+len(answer.Suffixes) > 0 || answer.Bound != "" || answer.Created != nil {
			return nil, errors.New("the response describes a node although known is false")
		}
		return nil, nil
	}
	return answer.entry(node)
}

// entry returns the entry for node that the response describes.
func (a *nodeAnswer) entry(node string) (*inventory.Entry, error) {
	entry := &inventory.Entry{Source: "webhook", Bound: a.Bound}
	if a.Created != nil {
		entry.Created = *a.Created
	}
	var errs []error
	add := func(field string, values []string, add func(string) error) {
		for i, value := range values {
			if err := add(value); err != nil {
				errs = append(errs, fmt.Errorf("%s[%d] %q: %w", field, i, value, err))
			}
		}
	}
	add("names", a.Names, entry.AddName)
	add("addresses", a.Addresses, entry.AddAddress)
	add("suffixes", a.Suffixes, entry.AddSuffix)
	if a.Bound != "" && len(validation.IsDNS1123Subdomain(a.Bound)) > 0 {
		errs = append(errs, fmt.Errorf("bound %q is not a valid Node name", a.Bound))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return entry.For(node), nil
}
