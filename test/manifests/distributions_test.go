//go:build nightly

package manifests

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// distribution is a section of docs/how-to/distributions.md whose commands are run.
type distribution struct {
	// files are written into the folder that stands for place on a node of the distribution.
	place string
	files func(clients, servers *csrenv.CA) map[string][]byte
	// deployments are what the commands install.
	deployments []string
	// servers says that serving certificates come from a CA of their own.
	servers bool
	// off are the controllers of kube-controller-manager that the section writes, and begins where the tool's own value ends.
	off, begins string
}

var distributions = map[string]distribution{
	"k3s": {
		place: "/var/lib/rancher/k3s/server/tls",
		files: func(clients, servers *csrenv.CA) map[string][]byte {
			return map[string][]byte{
				"client-ca.crt": clients.CertPEM, "client-ca.key": clients.KeyPEM, "server-ca.crt": servers.CertPEM, "server-ca.key": servers.KeyPEM,
			}
		},
		deployments: []string{approver, signer, cleaner}, servers: true,
		off: "controllers+=*,-csrapproving,-csrsigning,-csrcleaner", begins: "controllers+=",
	},
	"k0s": {
		place: "/var/lib/k0s/pki",
		files: func(clients, _ *csrenv.CA) map[string][]byte {
			return map[string][]byte{"ca.crt": clients.CertPEM, "ca.key": clients.KeyPEM}
		},
		deployments: []string{approver, signer, cleaner},
		off:         `controllers: "*,bootstrapsigner,tokencleaner,-csrapproving,-csrsigning,-csrcleaner"`, begins: `controllers: "`,
	},
	"Talos": {
		place: "/no/place/in/this/page",
		files: func(clients, _ *csrenv.CA) map[string][]byte {
			const file = "cluster:\n  ca:\n    crt: %s\n    key: %s\n"
			text := base64.StdEncoding.EncodeToString
			return map[string][]byte{"controlplane.yaml": fmt.Appendf(nil, file, text(clients.CertPEM), text(clients.KeyPEM))}
		},
		deployments: []string{common},
		off:         `controllers: "*,tokencleaner,-csrapproving,-csrsigning,-csrcleaner"`, begins: `controllers: "`,
	},
}

// TestDistributions runs the commands of docs/how-to/distributions.md up to the installation, as they are written, on a real
// API server. What only exists on a node of the distribution is replaced: its folder with the CA, its copy of kubectl, and
// the commands for images. The CA that the page names must then sign.
func TestDistributions(t *testing.T) {
	t.Parallel()
	for name, test := range distributions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, section, found := strings.Cut(string(read(t, filepath.Join(root, "docs/how-to/distributions.md"))), "\n## "+name+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			kit.Require(t, found && strings.Contains(section, test.off), "the page does not switch the controllers off by %s", test.off)
			u, servers := startPods(t, 1), kit.NewCA(t)
			node := &distributionNode{u, filepath.Join(t.TempDir(), "node")}
			for file, data := range test.files(u.CA, servers) {
				node.write(t, file, data)
			}
			node.install(t, section, test.place)
			for _, name := range test.deployments {
				u.available(t, name)
			}
			if got := u.signs(t, name).Issuer.CommonName; got != kit.Certificate(t, u.CA).Subject.CommonName {
				t.Errorf("%q signs for clients", got)
			}
			if test.servers {
				obj := kit.ServingRequest(t, "a", "10.0.0.1")
				u.approved(t, "a serving certificate", obj)
				kit.IssuedBy(t, obj, servers)
			}
			knowsControllers(t, strings.Trim(strings.TrimPrefix(test.off, test.begins), `"`))
		})
	}
}

// distributionNode runs commands as on a node of a distribution.
type distributionNode struct {
	*upgrade
	folder string
}

func (n *distributionNode) write(t *testing.T, name string, data []byte) {
	t.Helper()
	file := filepath.Join(n.folder, name)
	kit.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o700)))
}

// codeBlock matches the shell commands and the YAML of a page.
var codeBlock = regexp.MustCompile("(?ms)^```(sh|yaml)\n(.*?)^```$")

// install runs the shell commands of section, up to and including those that install. place is a folder of the distribution.
// The working directory has the files of the node, and looks like a clone of the repository, which is beside it too.
func (n *distributionNode) install(t *testing.T, section, place string) {
	t.Helper()
	kubectl, err := filepath.Abs(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"))
	helm, helmErr := helmPath()
	kubeconfig, configErr := n.WriteKubeconfig("distribution", n.Config)
	clone, cloneErr := filepath.Abs(root)
	kit.NoError(t, errors.Join(err, helmErr, configErr, cloneErr))
	for name, target := range map[string]string{"config": "config", "charts": "charts", "../csr-controller-manager": ""} {
		kit.NoError(t, os.Symlink(filepath.Join(clone, target), filepath.Join(n.folder, name)))
	}
	for name, script := range map[string]string{
		"kubectl": "exec " + kubectl + ` "$@"`, "helm": "exec " + helm + ` "$@"`,
		"k0s":  `if [ "$1" = kubectl ]; then shift; exec ` + kubectl + ` "$@"; fi; [ "$1 $2 $3" = "ctr images import" ]`,
		"k3s":  `[ "$1 $2 $3" = "ctr images import" ]`,
		"yq":   `sed -n "s/^ *${1##*.}: //p" "$2"`,
		"make": "", "go": "", "tar": "",
	} {
		n.write(t, "programs/"+name, []byte("#!/bin/sh\n"+script+"\n"))
	}
	here := strings.NewReplacer("/etc/rancher/k3s/k3s.yaml", kubeconfig, place, n.folder)
	for _, block := range codeBlock.FindAllStringSubmatch(section, -1) {
		if block[1] == "yaml" {
			n.write(t, "kustomization.yaml", []byte(block[2]))
			continue
		}
		command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", here.Replace(block[2]))
		command.Dir = n.folder
		command.Env = append(os.Environ(), "PATH="+filepath.Join(n.folder, "programs")+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+n.folder)
		if output, err := n.during(t, command); err != nil {
			t.Fatalf("%v\n%s\n%s\nnot ready: %v", err, block[2], output, n.notReady(t.Context()))
		}
		if strings.Contains(block[2], "helm install") || strings.Contains(block[2], "kubectl apply -k") {
			return
		}
	}
	t.Fatal("the section installs nothing")
}

// available waits until all replicas of a Deployment are ready.
func (u *upgrade) available(t *testing.T, name string) {
	t.Helper()
	u.within(t, time.Minute, name+" is available", func(ctx context.Context) error {
		deployment := &appsv1.Deployment{}
		if err := u.admin.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: name}, deployment); err != nil {
			return err
		}
		if got := deployment.Status.AvailableReplicas; got != *deployment.Spec.Replicas {
			return fmt.Errorf("%d of %d replicas: %s", got, *deployment.Spec.Replicas, u.notReady(ctx))
		}
		return nil
	})
}

// knowsControllers checks that kube-controller-manager accepts --controllers=value. It stops at the kubeconfig, which does
// not exist, after it has checked its flags.
func knowsControllers(t *testing.T, value string) {
	t.Helper()
	for value, want := range map[string]bool{value: true, value + ",-nonsense": false} {
		var output bytes.Buffer
		command := exec.CommandContext(t.Context(), os.Getenv("KUBE_CONTROLLER_MANAGER"), "--controllers="+value, "--kubeconfig=/does/not/exist")
		command.Stdout, command.Stderr = &output, &output
		err := command.Run()
		known := !strings.Contains(output.String(), "is not in the list of known controllers")
		kit.Check(t, err != nil && known == want && strings.Contains(output.String(), "/does/not/exist") == want,
			"--controllers=%s: known: %t, want %t; error %v:\n%s", value, known, want, err, output.String())
	}
}
