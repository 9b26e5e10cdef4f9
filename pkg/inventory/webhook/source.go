// Package webhook knows nodes by asking a server over HTTPS.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// The API of questions and answers.
const (
	lookupVersion = "inventory.csr-controller-manager.io/v1alpha1"
	lookupKind    = "NodeLookup"
)

// Limits of a lookup.
const (
	DefaultTimeout = 5 * time.Second
	MaxTimeout     = inventory.MaxLookupTime
	maxAnswer      = 64 << 10
	maxLookups     = 32
)

// Options say which server to ask.
type Options struct {
	// URL is an https one.
	URL string
	// CAFile holds the CAs of the server's certificate. No others are trusted.
	CAFile string
	// CertFile and KeyFile, if set, are shown to the server. All files may change at any time.
	CertFile, KeyFile string
	// Timeout bounds a lookup as a whole; 0 is DefaultTimeout.
	Timeout time.Duration
}

var _ inventory.Slow = &Source{}

// Source knows nodes by asking a server.
type Source struct {
	options Options
	clients clients
	// slots bounds how many lookups are under way, so that a server that stalls holds no more connections than that.
	slots chan struct{}
}

// New returns an error that joins all mistakes in options. It does not read the files.
func New(options Options) (*Source, error) {
	options.Timeout = cmp.Or(options.Timeout, DefaultTimeout)
	errs := []error{checkURL(options.URL)}
	if options.CAFile == "" {
		errs = append(errs, errors.New("caFile: name the file with the CA of the server"))
	}
	if (options.CertFile == "") != (options.KeyFile == "") {
		errs = append(errs, errors.New("certFile, keyFile: set both or none"))
	}
	if options.Timeout < 0 || options.Timeout > MaxTimeout {
		errs = append(errs, fmt.Errorf("timeout: %s: want up to %s", options.Timeout, MaxTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Source{
		options: options, slots: make(chan struct{}, maxLookups),
		clients: clients{
			ca: options.CAFile, cert: options.CertFile, key: options.KeyFile, timeout: options.Timeout,
		},
	}, nil
}

// checkURL returns what is wrong with a URL.
func checkURL(text string) error {
	// The error of url.Parse would show what may be a password.
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("url: is none")
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("url: want https://HOST")
	case u.User != nil || u.Fragment != "":
		return errors.New("url: want no user and no fragment: a client certificate says who asks")
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
		return nil, errors.New("is asked about a request only")
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%d lookups are under way: %w", maxLookups, ctx.Err())
	}
	answer, err := s.post(ctx, nodeLookup{
		APIVersion: lookupVersion, Kind: lookupKind, UID: req.UID, Node: node, SignerName: req.SignerName,
		Requester: requester{
			Username: req.Requester.Username, Groups: append([]string{}, req.Requester.Groups...), UID: req.Requester.UID,
		},
	})
	if err != nil {
		return nil, short(err)
	}
	entry, err := readAnswer(answer, node, req.UID)
	return entry, short(err)
}

// short cuts an error that a server may have made long.
func short(err error) error {
	const most = 512
	if err == nil || len(err.Error()) <= most {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:most], "") + "...")
}

// nodeLookup is the question to the webhook.
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

// post returns the body of the answer.
func (s *Source) post(ctx context.Context, question nodeLookup) ([]byte, error) {
	client, err := s.clients.get()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	// Asking twice does no harm. With this header, which is not sent without a value, net/http asks again if a kept
	// connection was closed.
	request.Header["Idempotency-Key"] = []string{}
	response, err := client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, which may hold a secret
		}
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %d, want 200", response.StatusCode)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil {
		err = ctx.Err() // a server that is hung up on may end its answer early
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("answered more than %d KiB", maxAnswer>>10)
	}
	return answer, nil
}
