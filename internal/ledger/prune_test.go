package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPruneKeepsAnObjectStorable checks that certificates for any number of nodes make no object too large.
func TestPruneKeepsAnObjectStorable(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	one := issued{KeyID: "0123456789abcdef", NotBefore: now, NotAfter: now.Add(time.Hour)}
	all := map[string]newest{}
	for n := range maxPerShard + 10 {
		one.NotAfter = one.NotAfter.Add(time.Second)
		all[fmt.Sprintf("%05d%s", n, strings.Repeat("n", 248))] = newest{"kubernetes.io/kubelet-serving": one, "kubernetes.io/kube-apiserver-client-kubelet": one}
	}
	prune(all, now)
	size, data := 0, map[string]string{}
	for node, certificates := range all {
		if err := encode(data, node, certificates); err != nil {
			t.Fatal(err)
		}
		size += len(node) + len(data[node]) + 16
		if node < "00010" {
			t.Errorf("%.5s is among those that end first, and was kept", node)
		}
	}
	if len(all) != maxPerShard || size > 1<<20 {
		t.Errorf("%d nodes with %d bytes", len(all), size)
	}
}
