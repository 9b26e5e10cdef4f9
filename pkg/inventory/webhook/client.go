package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// clients makes HTTP clients from files, a new one when their content has changed.
type clients struct {
	ca, cert, key string
	timeout       time.Duration

	mu      sync.Mutex
	content [][]byte // of the files that current has been made from
	current *http.Client
}

// get returns a client of the files as they are now. It reads them each time: they are small, and a CA that is removed
// counts no more from the next lookup on.
func (c *clients) get() (*http.Client, error) {
	content := make([][]byte, 0, 3)
	for _, name := range []string{c.ca, c.cert, c.key} {
		var data []byte
		if name != "" {
			var err error
			if data, err = os.ReadFile(name); err != nil {
				return nil, err
			}
		}
		content = append(content, data)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && slices.EqualFunc(content, c.content, bytes.Equal) {
		return c.current, nil
	}
	client, err := c.make(content[0], content[1], content[2])
	if err != nil {
		return nil, err
	}
	if c.current != nil {
		c.current.CloseIdleConnections()
	}
	c.current, c.content = client, content
	return client, nil
}

// make returns a client of the content of the files.
func (c *clients) make(ca, cert, key []byte) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", c.ca)
	}
	if c.cert != "" {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", c.cert, c.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{
		// HTTP/1.1, where a lookup that stalls holds up no other, and no proxy, whatever the environment says.
		Transport: &http.Transport{
			TLSClientConfig:        config,
			DialContext:            (&net.Dialer{Timeout: c.timeout}).DialContext,
			TLSHandshakeTimeout:    c.timeout, // a connection may be made for a lookup that has given up
			MaxConnsPerHost:        maxLookups,
			MaxIdleConnsPerHost:    maxLookups,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: maxAnswer,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("answered with a redirect") },
	}, nil
}
