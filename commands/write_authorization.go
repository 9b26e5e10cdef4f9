package commands

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
)

// authorizationOptions are the flags of write-authorization.
type authorizationOptions struct {
	list             types.NamespacedName
	base, to, listen string
	kubeconfig       string // with which the command reads the list
}

// writeAuthorizationCommand returns the command that makes the API server of this host refuse what a block list names.
func writeAuthorizationCommand() *cobra.Command {
	o := &authorizationOptions{}
	cmd := &cobra.Command{
		Use:   "write-authorization --block-list NAMESPACE/NAME --to FILE",
		Short: "Make the API server of this host refuse what a block list names",
		Long: `write-authorization keeps the file for the --authorization-config of the API server on this host: the cluster's own
authorizers, and before them a webhook that is asked about blocked nodes, users and certificates only, and refuses them. The
API server reads the file again by itself. write-authorization answers the webhook; if it does not run, the blocked stay
refused. A file that an API server would not load, or that refuses a user whom the cluster needs, is not written.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	list := flags.String("block-list", "", "`namespace/name` of the ConfigMap with the block list")
	flags.StringVar(&o.to, "to", "", "`file` to write, in a folder that the API server sees at the same path")
	_, _ = cmd.MarkFlagRequired("block-list"), cmd.MarkFlagRequired("to") // the flags exist
	flags.StringVar(&o.base, "base", "", "`file` with the cluster's own AuthorizationConfiguration (default: Node, RBAC)")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:10268", "loopback `address` at which the webhook is answered")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the user that reads the list (default: the Pod's ServiceAccount)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		namespace, name, found := strings.Cut(*list, "/")
		host, _, err := net.SplitHostPort(o.listen)
		switch o.list = (types.NamespacedName{Namespace: namespace, Name: name}); {
		case !found || namespace == "" || name == "":
			return fmt.Errorf("--block-list: %q is not namespace/name", *list)
		case !filepath.IsAbs(o.to) || o.to == o.base:
			return errors.New("--to: want an absolute path, and another file than --base")
		case err != nil || !net.ParseIP(host).IsLoopback():
			return fmt.Errorf("--listen: %q is not a loopback address with a port: use for example 127.0.0.1:10268", o.listen)
		}
		cluster, err := restConfig(o.kubeconfig)
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), cluster, newLogger(0, os.Stderr))
	}
	return cmd
}

// recheck is the time between two checks of the files, and between two attempts to get the address of the webhook.
const recheck = 5 * time.Second

// run answers the webhook and keeps the file up to date until ctx ends. Until the list was read, the file stays as it is.
func (o *authorizationOptions) run(ctx context.Context, cluster *rest.Config, logger logr.Logger) error {
	kubeconfig, err := o.serve(ctx, logger)
	if err != nil {
		return err
	}
	list := blocklist.New(o.list)
	changed := list.Subscribe()
	watch, err := list.Watch(cluster, logger)
	if err != nil {
		return err
	}
	go func() { _ = watch.Start(ctx) }() // it ends with ctx, without an error
	_ = list.WaitForFirst(ctx)           // never an error
	client, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return err
	}
	writer, last := "", ""
	for {
		blocked, err := list.Entries()
		if err == nil && writer == "" {
			writer, err = ownName(ctx, client)
		}
		if err == nil {
			err = o.once(ctx, blocked, writer, kubeconfig, logger)
		}
		problem := fmt.Sprint(err)
		if err != nil && problem != last && ctx.Err() == nil {
			logger.Info("The block list has no effect here, but for what the file has", "why", problem)
		}
		last = problem
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(recheck): // the base or the files may have changed
		}
	}
}

// ownName returns the name of the user as whom client reads the list.
func ownName(ctx context.Context, client kubernetes.Interface) (string, error) {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask the API server who this is: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// authorizationFileMark is the first line of a file that write-authorization has created.
const authorizationFileMark = "# Kept by csr-controller-manager write-authorization: it replaces what is changed here.\n"

// once writes the files if what they must hold has changed: first the kubeconfig, which the other file names. Without it, no
// API server starts.
func (o *authorizationOptions) once(
	ctx context.Context, blocked entries.Entries, writer string, kubeconfig []byte, logger logr.Logger,
) error {
	base := []byte(authorization.Default)
	if o.base != "" {
		var err error
		if base, err = os.ReadFile(o.base); err != nil {
			return err
		}
	}
	kubeconfigFile := o.to + ".kubeconfig"
	if _, err := replaceFile(kubeconfigFile, authorizationFileMark, kubeconfig); err != nil {
		return err
	}
	data, err := authorization.Join(base, blocked, writer, kubeconfigFile, kubeconfig)
	if err != nil {
		return fmt.Errorf("%s: %w", o.base, err)
	}
	if held, err := os.ReadFile(o.to); err == nil && string(held) == authorizationFileMark+string(data) {
		return nil
	}
	if err := authorization.Check(ctx, data, blocked, writer); err != nil {
		return fmt.Errorf("%s stays as it is: %w", o.to, err)
	}
	if _, err := replaceFile(o.to, authorizationFileMark, data, base); err != nil {
		return err
	}
	logger.Info("Wrote the authorization of the API server", "file", o.to, "canary", blocked.Canary(),
		"nodes", len(blocked.Nodes), "users", len(blocked.Users), "certificates", len(blocked.Certificates))
	return nil
}

// maxReview is the largest SubjectAccessReview in bytes that is read. The blocked can make larger ones: an API server refuses
// them without an answer, too. Each process of this host can send any number, which must not take the memory of the host.
const maxReview = 64 << 10

// serve answers the webhook until ctx ends. It returns the kubeconfig for API servers. The key of the server is only in memory,
// so that another process of this host that takes the address can't answer. It can't stop enforcement either: the files do not
// depend on the webhook.
func (o *authorizationOptions) serve(ctx context.Context, logger logr.Logger) (kubeconfig []byte, err error) {
	host, _, _ := net.SplitHostPort(o.listen)
	const tenYears = 10 * 365 * 24 * time.Hour
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKeyWithOptions(certutil.SelfSignedCertKeyOptions{Host: host, MaxAge: tenYears})
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the webhook: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the webhook: %w", err)
	}
	kubeconfig, err = clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"webhook": {Server: "https://" + o.listen, CertificateAuthorityData: certPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"webhook": {Cluster: "webhook"}},
		CurrentContext: "webhook",
	})
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		Addr: o.listen, Handler: http.MaxBytesHandler(http.HandlerFunc(o.refuse), maxReview), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		ErrorLog:  log.New(io.Discard, "", 0), // each process of this host can cause its lines
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go wait.UntilWithContext(ctx, func(context.Context) {
		if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "Can't answer the webhook: the blocked stay refused, with status 500")
		}
	}, recheck)
	return kubeconfig, nil
}

// refuse answers each SubjectAccessReview with a refusal: the API server asks about blocked users only.
func (o *authorizationOptions) refuse(w http.ResponseWriter, request *http.Request) {
	review := &authorizationv1.SubjectAccessReview{}
	if err := json.NewDecoder(request.Body).Decode(review); err != nil {
		http.Error(w, "want a SubjectAccessReview", http.StatusBadRequest)
		return
	}
	review.Status = authorizationv1.SubjectAccessReviewStatus{
		Denied: true,
		Reason: fmt.Sprintf("blocked: %s, see ConfigMap %s", ascii.Quote(review.Spec.User), o.list),
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client may have gone
}
