package ledger

import (
	"encoding/json"
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
		name := fmt.Sprintf("%05d%s", n, strings.Repeat("n", 248))
		all[name] = newest{"kubernetes.io/kubelet-serving": one, "kubernetes.io/kube-apiserver-client-kubelet": one}
	}
	prune(all, now)
	data, err := json.Marshal(all)
	if err != nil || len(all) != maxPerShard || len(data)+16*len(all) > 1<<20 {
		t.Errorf("%d nodes with %d bytes, error %v", len(all), len(data), err)
	}
	for node := range all {
		if node < "00010" {
			t.Errorf("%.5s is among those that end first, and was kept", node)
		}
	}
}
