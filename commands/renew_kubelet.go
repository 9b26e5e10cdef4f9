package commands

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/kubelet"
)

// renewKubeletCommand returns the command that renews the certificates of the kubelet of this host.
func renewKubeletCommand() *cobra.Command {
	r := &kubelet.Renewal{Clock: clock.RealClock{}}
	cmd := &cobra.Command{
		Use:   "renew-kubelet",
		Short: "Renew the certificates of this host's kubelet with the CA that signs now, and restart it",
		Long: `renew-kubelet, as root on a node, requests a new client certificate with the kubelet's present one. If another CA
issued it than the present one, renew-kubelet puts it in its place, restarts the kubelet, and waits until the node is back. If
it does not come back, it gets its old certificates again. Run it again after an interruption: it finishes what was begun. It
restarts only a kubelet.service of systemd that starts again by itself. Pods go on running.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&r.Kubeconfig, "kubeconfig", "/etc/kubernetes/kubelet.conf", "`file` of the kubelet")
	flags.BoolVar(&r.Serving, "serving", false, "also renew the serving certificate")
	flags.StringVar(&r.Healthz, "healthz", "127.0.0.1:10248", "`address` of the kubelet's health check")
	flags.StringVar(&r.Address, "address", "", "`address` at which the kubelet serves (default: that of its Node)")
	flags.DurationVar(&r.Back, "back", 2*time.Minute, "`time` that the kubelet may take to come back")
	timeout := flags.Duration("timeout", 15*time.Minute, "`time` for all of it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		r.Log = newLogger(0, os.Stderr)
		return r.Run(ctx)
	}
	return cmd
}
