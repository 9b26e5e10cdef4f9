// Package cluster starts a real etcd and kube-apiserver for this project's demo, tests and benchmarks. The API server
// has bootstrap tokens, a token file, the Node authorizer and NodeRestriction, and trusts the CA of the cluster.
package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/guard"
)

// Token is a line of the API server's token file.
type Token struct{ Token, User, UID, Groups string }

// patience bounds the starts and the ends of etcd and of kube-apiserver, each. On two idle cores a start takes two seconds.
// With the default of 20 seconds, tests fail on a machine that compiles beside them.
const patience = time.Minute

// etcdQuota is 8 GiB, the largest quota that etcd recommends. A benchmark stores 500,000 requests.
const etcdQuota = "8589934592"

// Cluster is a running control plane without controllers.
type Cluster struct {
	// Config is that of an administrator.
	Config *rest.Config
	// CA is a CA that the API server trusts for client certificates.
	CA *csrenv.CA
	// Env is the environment below; use it to add users.
	Env *envtest.Environment
	// Dir is the cluster's own folder. Stop removes it.
	Dir string

	guard *guard.Guard
}

// Start starts a control plane with the binaries in KUBEBUILDER_ASSETS. The API server knows tokens. Call Stop at the
// end.
func Start(tokens ...Token) (*Cluster, error) {
	return StartConfigured(func(string, *envtest.Arguments) {}, tokens...)
}

// StartConfigured is Start. configure changes the flags of the API server, with files in the cluster's folder dir.
func StartConfigured(configure func(dir string, args *envtest.Arguments), tokens ...Token) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "csr-cluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Env: &envtest.Environment{ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}, Dir: dir}
	if err := c.prepare(tokens); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	configure(dir, c.Env.ControlPlane.GetAPIServer().Configure())
	if c.guard, err = guard.Start(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if c.Config, err = c.Env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), c.Stop())
	}
	c.Config.QPS = -1
	return c, nil
}

// prepare configures the programs of Start. All files are in Dir.
func (c *Cluster) prepare(tokens []Token) (err error) {
	if c.CA, err = csrenv.Prepare(c.Env); err != nil {
		return err
	}
	var lines bytes.Buffer
	for _, token := range tokens {
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", token.Token, token.User, token.UID, token.Groups)
	}
	tokenFile := filepath.Join(c.Dir, "tokens.csv")
	certDir, dataDir := filepath.Join(c.Dir, "apiserver"), filepath.Join(c.Dir, "etcd-data")
	if err := errors.Join(os.WriteFile(tokenFile, lines.Bytes(), 0o600), os.Mkdir(certDir, 0o700), os.Mkdir(dataDir, 0o700)); err != nil {
		return err
	}
	apiServer := c.Env.ControlPlane.GetAPIServer()
	apiServer.CertDir = certDir
	address, err := FreeAddress() // RestartAPIServer needs it again
	if err != nil {
		return err
	}
	if apiServer.Address, apiServer.Port, err = net.SplitHostPort(address); err != nil {
		return err
	}
	args := apiServer.Configure().
		Set("authorization-mode", "Node", "RBAC").
		Set("enable-bootstrap-token-auth", "true").
		Append("enable-admission-plugins", "NodeRestriction")
	if len(tokens) > 0 {
		args.Set("token-auth-file", tokenFile)
	}
	etcd := &envtest.Etcd{DataDir: dataDir}
	etcd.Configure().Set("unsafe-no-fsync", "true").Set("quota-backend-bytes", etcdQuota)
	c.Env.ControlPlane.Etcd = etcd
	apiServer.Path, err = wrap(c.Dir, "kube-apiserver")
	if err != nil {
		return err
	}
	etcd.Path, err = wrap(c.Dir, "etcd")
	return err
}

// Stop ends the control plane and removes its files. The guard ends processes that do not end by themselves.
func (c *Cluster) Stop() error {
	etcdClient.CloseIdleConnections() // etcd waits for its clients
	err := c.Env.Stop()
	return errors.Join(err, c.guard.Stop(err == nil), os.RemoveAll(c.Dir))
}

// WriteKubeconfig writes cfg to its own file and returns its path.
func (c *Cluster) WriteKubeconfig(name string, cfg *rest.Config) (string, error) {
	path := filepath.Join(c.Dir, name+".kubeconfig")
	data, err := Kubeconfig(cfg)
	return path, errors.Join(err, os.WriteFile(path, data, 0o600))
}

// Kubeconfig returns the content of a kubeconfig for cfg.
func Kubeconfig(cfg *rest.Config) ([]byte, error) {
	const self = "cluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[self] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	config.AuthInfos[self] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
		ClientCertificate: cfg.CertFile, ClientKey: cfg.KeyFile,
	}
	config.Contexts[self] = &clientcmdapi.Context{Cluster: self, AuthInfo: self}
	config.CurrentContext = self
	return clientcmd.Write(*config)
}

// Guard tells the guard to end the process if this process can't, because it was killed or timed out. Call release
// after the process has been waited for: another process may get its ID then.
func (c *Cluster) Guard(process *os.Process) (release func()) { return c.guard.Process(process.Pid) }

// wrapper writes the process ID of a binary to $DIR, for the guard, and then executes the binary.
const wrapper = "#!/bin/sh\necho $$ > %s\nexec %s \"$@\"\n"

// wrap writes a script in dir that runs the binary of that name in KUBEBUILDER_ASSETS, and returns its path.
func wrap(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	script := fmt.Sprintf(wrapper, quote(path+".pid"), quote(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name)))
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// quote quotes text as one word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// The ports of FreeAddress begin at firstPort. Every process begins at another one of them.
const firstPort = 12000

var portsGiven atomic.Int64

func init() { portsGiven.Store(rand.Int64N(1 << 16)) }

// FreeAddress returns an address on which a process can listen. The kernel gives its port to no connection, so the address stays free
// before the process listens and while it is restarted. No address is returned twice, unless all have been.
func FreeAddress() (string, error) {
	end, err := firstOfConnections()
	if err != nil {
		return "", err
	}
	for range end - firstPort {
		port := firstPort + portsGiven.Add(1)%int64(end-firstPort)
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find a free port: %w", err)
		}
		return address, listener.Close()
	}
	return "", fmt.Errorf("no port from %d to %d is free", firstPort, end-1)
}

// firstOfConnections returns the first of the ports that the kernel gives to connections
// (https://docs.kernel.org/networking/ip-sysctl.html, ip_local_port_range).
func firstOfConnections() (int, error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) { // not Linux: others begin at 49152
		return 32768, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the ports of connections: %w", err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0, fmt.Errorf("%s is %q: %w", file, text, err)
	}
	return first, nil
}

// RestartAPIServer restarts the API server on the same etcd and address. configure changes its flags.
func (c *Cluster) RestartAPIServer(configure func(*envtest.Arguments)) error {
	apiServer := c.Env.ControlPlane.GetAPIServer()
	if err := apiServer.Stop(); err != nil && !errors.Is(err, syscall.ESRCH) { // KillAPIServer has ended it
		return fmt.Errorf("stop the API server: %w", err)
	}
	configure(apiServer.Configure())
	if err := apiServer.Start(); err != nil {
		return fmt.Errorf("start the API server again: %w", err)
	}
	return nil
}

// APIServerPid returns the process ID of the API server.
func (c *Cluster) APIServerPid() (int, error) {
	text, err := os.ReadFile(c.Env.ControlPlane.GetAPIServer().Path + ".pid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// KillAPIServer ends the API server without warning, and returns when it has ended. RestartAPIServer starts it again.
func (c *Cluster) KillAPIServer() error {
	pid, err := c.APIServerPid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the API server: %w", err)
	}
	for range 100 {
		if syscall.Kill(pid, 0) != nil { // it was waited for
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the API server does not end")
}

// ClientCAFile returns the path of the API server's client CA file. The API server reads the file again after a
// change.
func (c *Cluster) ClientCAFile() string {
	return filepath.Join(c.Dir, "apiserver", "csrenv-client-ca.crt")
}

// TrustClients writes bundle to the API server's client CA file, atomically.
func (c *Cluster) TrustClients(bundle []byte) error {
	part := c.ClientCAFile() + ".part"
	return errors.Join(os.WriteFile(part, bundle, 0o600), os.Rename(part, c.ClientCAFile()))
}

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

// Object is an object of the API server, without its content.
type Object struct {
	Kind schema.GroupVersionResource
	metav1.PartialObjectMetadata
}

func (o Object) String() string {
	return fmt.Sprintf("%s.%s %s/%s", o.Kind.Resource, o.Kind.Group, o.Namespace, o.Name)
}

// List returns all objects of all kinds. A kind is left out if skip, which may be nil, permits the error of its list.
func List(ctx context.Context, config *rest.Config, skip func(error) bool) (all []Object, err error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	skips := func(err error) bool { return apierrors.IsMethodNotSupported(err) || skip != nil && skip(err) }
	kinds, err := listable(config)
	if err != nil && !skips(err) {
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	lister, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		list, err := lister.Resource(kind).List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
			for _, obj := range list.Items {
				all = append(all, Object{kind, obj})
			}
		case !skips(err):
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
	}
	return all, nil
}

// listable returns the kinds that can be listed. With an error of a group, it returns those of the other groups.
func listable(config *rest.Config) (kinds []schema.GroupVersionResource, err error) {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := discover.ServerPreferredResources()
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			if slices.Contains(kind.Verbs, "list") {
				kinds = append(kinds, version.WithResource(kind.Name))
			}
		}
	}
	return kinds, err
}

// Objects returns all objects of all kinds in the API server, as "RESOURCE.GROUP NAMESPACE/NAME LABEL". LABEL is
// app.kubernetes.io/name, if the object has it.
func Objects(ctx context.Context, config *rest.Config) (sets.Set[string], error) {
	all, err := List(ctx, config, nil)
	if err != nil {
		return nil, err
	}
	found := sets.New[string]()
	for _, obj := range all {
		text := obj.String() + " "
		if name := obj.Labels["app.kubernetes.io/name"]; name != "" {
			text += "app.kubernetes.io/name=" + name
		}
		found.Insert(text)
	}
	return found, nil
}
