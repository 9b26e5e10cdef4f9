package csrenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// ownAuthn is an Authn of a suite. Its Start writes content to its client CA file, if there is content.
type ownAuthn struct{ file, content string }

func (a *ownAuthn) Configure(workDir string, args *envtest.Arguments) error {
	if a.file != "" {
		args.Set("client-ca-file", filepath.Join(workDir, a.file))
		a.file = filepath.Join(workDir, a.file)
	}
	return nil
}

func (a *ownAuthn) Start() error {
	if a.content == "" {
		return nil
	}
	return os.WriteFile(a.file, []byte(a.content), 0o600)
}

func (a *ownAuthn) Stop() error { return nil }

func (a *ownAuthn) AddUser(envtest.User, *rest.Config) (*rest.Config, error) {
	return &rest.Config{Username: "own"}, nil
}

// TestPrepareKeepsAuthn does what envtest does with the Authn of a suite, without an API server.
func TestPrepareKeepsAuthn(t *testing.T) {
	for name, test := range map[string]struct {
		own    ownAuthn
		before string // what the file holds before the CA
		fails  string
	}{
		"with client CAs":     {ownAuthn{"own.crt", "theirs"}, "theirs\n", ""},
		"without client CAs":  {ownAuthn{}, "\n", ""},
		"its file is missing": {ownAuthn{"own.crt", ""}, "", "read the --client-ca-file of the environment's own Authn, which its Start must write: open "},
	} {
		t.Run(name, func(t *testing.T) {
			env := &envtest.Environment{}
			apiServer := env.ControlPlane.GetAPIServer()
			apiServer.Authn = &test.own
			signing, err := Prepare(env)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := apiServer.Authn.Configure(dir, apiServer.Configure()); err != nil {
				t.Fatal(err)
			}
			err = apiServer.Authn.Start()
			if test.fails != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.fails) {
					t.Errorf("got %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			files := apiServer.Configure().Get("client-ca-file").Get(nil)
			if len(files) != 1 || files[0] != filepath.Join(dir, "csrenv-client-ca.crt") {
				t.Fatalf("--client-ca-file is %q", files)
			}
			got, err := os.ReadFile(files[0])
			if want := test.before + string(signing.CertPEM); err != nil || string(got) != want {
				t.Errorf("the file holds %q, %v, want %q", got, err, want)
			}
			if cfg, err := apiServer.AddUser(envtest.User{Name: "a"}, nil); err != nil || cfg.Username != "own" {
				t.Errorf("AddUser: %v, %v", cfg, err)
			}
		})
	}
}
