package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// etcdClient keeps a connection for each of the concurrent callers of Store.
var etcdClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 2 * time.Minute}

// Store writes obj directly to etcd, as an older version of the API server could have stored it: with any creation
// time, and without validation. key is the path below /registry, such as certificatesigningrequests/NAME. Several goroutines may
// call it.
func (c *Cluster) Store(ctx context.Context, key string, obj runtime.Object) error {
	value, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return c.etcd(ctx, "put", map[string]string{"key": etcdKey(key), "value": base64.StdEncoding.EncodeToString(value)})
}

// Erase deletes all objects below prefix directly in etcd. prefix ends with a slash.
func (c *Cluster) Erase(ctx context.Context, prefix string) error {
	end := prefix[:len(prefix)-1] + "0" // the byte after the slash
	return c.etcd(ctx, "deleterange", map[string]string{"key": etcdKey(prefix), "range_end": etcdKey(end)})
}

func etcdKey(key string) string { return base64.StdEncoding.EncodeToString([]byte("/registry/" + key)) }

// etcd calls a method of etcd's JSON gateway for keys.
func (c *Cluster) etcd(ctx context.Context, method string, arguments map[string]string) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	to := c.Env.ControlPlane.Etcd.URL.JoinPath("v3/kv", method)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := etcdClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answered %s: %s", response.Status, text)
	}
	return nil
}
