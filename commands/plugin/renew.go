package plugin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/wholefile"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// renewCommand returns the command that renews the client certificates in kubeconfigs.
func renewCommand(connect connector) *cobra.Command {
	r := &renewal{}
	cmd := &cobra.Command{
		Use:   "renew KUBECONFIG…",
		Short: "Renew the client certificate in a kubeconfig, for the same user and groups",
		Long: `renew asks the API server who the user of each kubeconfig is, and requests a certificate for that user and its groups with
your rights. It shows them and asks, approves the request if you may, and writes the new certificate to the file, with a copy of
the old file beside it. A program that uses the file may need a restart.`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVar(&r.yes, "yes", false, "renew without asking")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 5*time.Minute, "longest `time` to wait for each certificate")
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, files []string) error {
		var errs []error
		for _, file := range files {
			ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
			if err := r.renew(ctx, cmd, c, file); err != nil {
				errs = append(errs, fmt.Errorf("%s stays as it is: %w", file, err))
			}
			cancel()
		}
		return errors.Join(errs...)
	})
	return cmd
}

// renewal are the flags of renew.
type renewal struct {
	yes     bool
	timeout time.Duration
}

// renew renews the client certificate in file.
func (r *renewal) renew(ctx context.Context, cmd *cobra.Command, c *cluster, file string) error {
	if err := refuseForeign(file); err != nil {
		return err
	}
	_, _, own, err := readKubeconfig(file)
	if err != nil {
		return err
	}
	who, err := check.WhoIs(ctx, c.config, own.CertData, own.KeyData) // the file may name another cluster, whose users this one does not know
	if err != nil {
		return fmt.Errorf("the API server of your own kubeconfig does not know its certificate, which has expired or is of another cluster: %w", err)
	}
	groups := slices.DeleteFunc(slices.Clone(who.Groups), func(name string) bool { return name == "system:authenticated" })
	switch {
	case slices.Contains(groups, "system:masters"):
		return errors.New("its user is in the group system:masters, for which no certificate is issued: make a user with fewer rights")
	case who.Username == "system:anonymous":
		return errors.New("the API server does not know its certificate")
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: user %q, groups %q\n", check.Word(file), csr.Shorten(who.Username), csr.ShortenAll(groups))
	if !r.yes && !confirmed(cmd.InOrStdin(), cmd.ErrOrStderr(), "Request and approve a new certificate for this user") {
		return errors.New("you did not confirm it")
	}
	old, err := tls.X509KeyPair(own.CertData, own.KeyData)
	if err != nil {
		return err
	}
	key, keyPEM, err := ca.NewKeyLike(old.Leaf.PublicKey)
	if err != nil {
		return err
	}
	payload, err := certutil.MakeCSR(key, &pkix.Name{CommonName: who.Username, Organization: groups}, nil, nil)
	if err != nil {
		return err
	}
	cert, err := c.issued(ctx, cmd, payload)
	if err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(cert, keyPEM); err != nil {
		return err
	}
	if err := check.KnownAs(ctx, own, cert, keyPEM, who.Username); err != nil { // at the API server of the file
		return err
	}
	before, err := replacePair(file, own.CertData, cert, keyPEM, c.now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s renewed; the old file is %s\n", check.Word(file), check.Word(before))
	return err
}

// readKubeconfig returns the content of file, its user, and how it reaches its API server. The certificate must be in the file.
func readKubeconfig(file string) (*clientcmdapi.Config, *clientcmdapi.AuthInfo, *rest.Config, error) {
	content, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, nil, nil, ascii.WithoutKeys(err)
	}
	var user *clientcmdapi.AuthInfo
	if current := content.Contexts[content.CurrentContext]; current != nil {
		user = content.AuthInfos[current.AuthInfo]
	}
	switch {
	case user == nil:
		err = errors.New("its current context has no user")
	case user.Exec != nil || user.AuthProvider != nil:
		err = errors.New("a program gets its credential: renew it there")
	case user.Impersonate != "":
		err = errors.New("it acts as another user: renew its own certificate in a file without that")
	case strings.HasSuffix(user.ClientCertificate, "kubelet-client-current.pem"):
		err = errors.New("it is a kubelet's: run csr-controller-manager renew-kubelet on its node")
	case len(user.ClientCertificateData) == 0 || len(user.ClientKeyData) == 0:
		err = errors.New("it holds no client certificate and key: embed them with kubectl config set-credentials --embed-certs")
	}
	if err != nil {
		return nil, nil, nil, err
	}
	resolved := content.DeepCopy() // paths in a file are relative to its folder, and stay as they are in the file
	if err := clientcmd.ResolveLocalPaths(resolved); err != nil {
		return nil, nil, nil, err
	}
	own, err := clientcmd.NewDefaultClientConfig(*resolved, nil).ClientConfig()
	return content, user, own, err
}

// issued requests a client certificate, approves the request if the caller may, and waits for the certificate.
func (c *cluster) issued(ctx context.Context, cmd *cobra.Command, payload []byte) ([]byte, error) {
	api := c.CertificatesV1().CertificateSigningRequests()
	obj, err := api.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kubectl-csr-renew-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: payload, SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	approving := &approval{cluster: c}
	if problem, _ := approving.approve(ctx, obj.DeepCopy(), "Renewed by hand with kubectl csr renew."); problem != "" {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Not approved: %s. Waits for: %s\n", problem, commandFor("kubectl csr approve", obj.Name))
	}
	name, problem := obj.Name, error(nil)
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if obj, problem = api.Get(ctx, name, metav1.GetOptions{}); problem != nil {
			refused := apierrors.IsNotFound(problem) || apierrors.IsForbidden(problem) || apierrors.IsUnauthorized(problem)
			return refused, nil // without an answer it is asked again: the key would be lost
		}
		if state := csr.StateOf(obj); state == csr.Denied || state == csr.Failed {
			return false, fmt.Errorf("the request is %s: %s", strings.ToLower(string(state)), commandFor("kubectl csr explain", obj.Name))
		}
		return len(obj.Status.Certificate) > 0, nil
	})
	if err = cmp.Or(problem, err); err != nil {
		return nil, fmt.Errorf("request %s: %w", name, err)
	}
	return obj.Status.Certificate, nil
}

// replacePair puts a pair into file in one step, with the file's mode and owner, and returns where it keeps the old file. Whatever
// else has changed in the file since it was read with the certificate old stays.
func replacePair(file string, old, cert, key []byte, now time.Time) (before string, err error) {
	content, user, _, err := readKubeconfig(file)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(user.ClientCertificateData, old) {
		return "", errors.New("another program has replaced its certificate meanwhile")
	}
	user.ClientCertificateData, user.ClientKeyData = cert, key
	text, err := clientcmd.Write(*content)
	if err != nil {
		return "", err
	}
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return "", err
	}
	found, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	before = file + now.UTC().Format(".before-20060102T150405Z")
	if err := os.Link(file, before); err != nil {
		return "", err
	}
	return before, wholefile.Write(file, text, func(next *os.File) error {
		return errors.Join(next.Chmod(found.Mode().Perm()), keepOwner(next, found))
	})
}
