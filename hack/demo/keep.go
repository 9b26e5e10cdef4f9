package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/yaml"
)

// stayUp prints commands to try, and waits for Ctrl-C or for the end of the manager.
func (d *demo) stayUp(ctx context.Context) error {
	bootstrap, err := d.cluster.WriteKubeconfig("bootstrap", d.bootstrap)
	if err != nil {
		return err
	}
	alice, err := d.manifest("alice", "alice", certificatesv1.KubeAPIServerClientSignerName)
	if err != nil {
		return err
	}
	fmt.Printf(`
Up until Ctrl-C. In another shell:

  export KUBECONFIG=%s
  export PATH=%s:$PATH

  kubectl create -f %s
  kubectl certificate approve alice
  kubectl get csr
  kubectl --kubeconfig %s auth whoami   # a node before it has a certificate

The manager's log: %s

`, d.kubeconfig, filepath.Dir(kubectlPath()), alice, bootstrap, d.manager.LogFile)
	<-ctx.Done()
	if d.manager.Ended() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// manifest writes a request to a file and returns its path.
func (d *demo) manifest(name, user, signer string) (string, error) {
	obj, err := userRequest(user, signer, certificatesv1.UsageClientAuth)
	if err != nil {
		return "", err
	}
	data, err := yaml.Marshal(obj)
	if err != nil {
		return "", err
	}
	path := filepath.Join(d.cluster.Dir, name+".yaml")
	return path, os.WriteFile(path, data, 0o600)
}
