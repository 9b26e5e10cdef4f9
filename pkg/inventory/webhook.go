package inventory

import (
	"bytes"
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
)

// What a webhook is asked and answers.
const (
	lookupVersion = "inventory.csr-controller-manager.io/v1alpha1"
	lookupKind    = "NodeLookup"
)

// Limits of a Webhook.
const (
	DefaultWebhookTimeout = 5 * time.Second
	MaxWebhookTimeout     = 30 * time.Second
	maxAnswer             = 64 << 10
	maxLookups            = 32
)

// WebhookOptions say where to ask.
type WebhookOptions struct {
	// URL is an https one.
	URL string
	// CAFile holds the certificates that the server's must chain to; no others are trusted.
	CAFile string
	// CertFile and KeyFile, if set, are shown to the server. All files may change at any time.
	CertFile, KeyFile string
	// Timeout is that of one lookup as a whole; 0 is DefaultWebhookTimeout.
	Timeout time.Duration
}

var _ Slow = &Webhook{}

// Webhook knows nodes by asking a server.
type Webhook struct {
	options WebhookOptions
	clients webhookClients
	// places bounds how many lookups are under way, so that a server that stalls holds no more connections than that.
	places chan struct{}
}

// NewWebhook returns an error that joins all mistakes in options. It does not read the files.
func NewWebhook(options WebhookOptions) (*Webhook, error) {
	if options.Timeout == 0 {
		options.Timeout = DefaultWebhookTimeout
	}
	errs := []error{checkURL(options.URL)}
	if options.CAFile == "" {
		errs = append(errs, errors.New("caFile: name the file with the CA of the server"))
	}
	if (options.CertFile == "") != (options.KeyFile == "") {
		errs = append(errs, errors.New("certFile, keyFile: set both or none"))
	}
	if options.Timeout < 0 || options.Timeout > MaxWebhookTimeout {
		errs = append(errs, fmt.Errorf("timeout: %s: want up to %s", options.Timeout, MaxWebhookTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Webhook{
		options: options, places: make(chan struct{}, maxLookups),
		clients: webhookClients{ca: options.CAFile, cert: options.CertFile, key: options.KeyFile, timeout: options.Timeout},
	}, nil
}

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

// Name implements Source.
func (w *Webhook) Name() string { return "webhook" }

// Concurrency implements Slow.
func (w *Webhook) Concurrency() int { return maxLookups }

// Lookup implements Source.
func (w *Webhook) Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error) {
	if req == nil || req.UID == "" {
		return nil, errors.New("is asked about a request only")
	}
	ctx, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	select {
	case w.places <- struct{}{}:
		defer func() { <-w.places }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%d lookups are under way: %w", maxLookups, ctx.Err())
	}
	answer, err := w.post(ctx, newLookup(node, req))
	if err != nil {
		return nil, short(err)
	}
	entry, err := readAnswer(answer, node, req.UID)
	return entry, short(err)
}

// short cuts what a server may have made long.
func short(err error) error {
	const most = 512
	if err == nil || len(err.Error()) <= most {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:most], "") + "...")
}

// nodeLookup is what the webhook is asked.
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

func newLookup(node string, req *csr.Request) nodeLookup {
	return nodeLookup{
		APIVersion: lookupVersion, Kind: lookupKind, UID: req.UID, Node: node, SignerName: req.SignerName,
		Requester: requester{Username: req.Requester.Username, Groups: append([]string{}, req.Requester.Groups...), UID: req.Requester.UID},
	}
}

// post returns the body of the answer.
func (w *Webhook) post(ctx context.Context, question nodeLookup) ([]byte, error) {
	client, err := w.clients.get()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.options.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	// Asking twice does no harm. Without a value it is not sent, and net/http asks again when a kept connection was closed.
	request.Header["Idempotency-Key"] = []string{}
	response, err := client.Do(request)
	if err != nil {
		return nil, withoutURL(err)
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

// withoutURL leaves out the URL, which may hold a secret.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
