package approver

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// BenchmarkRules judges the smallest request that each rule accepts, without any lookup.
func BenchmarkRules(b *testing.B) {
	b.Run("nodeclient", func(b *testing.B) {
		rule, req := NodeClient(), bootstrap()
		for b.Loop() {
			if asked, decision := reviewed(b, rule, req, "nodeclient"); decision.Verdict != verdict.Approve {
				b.Fatal(asked, decision)
			}
		}
	})
	b.Run("bootstrap", func(b *testing.B) {
		policy, req, facts := joining()
		for b.Loop() {
			if decision := policy.judge(req, facts); decision.Verdict != verdict.Ignore {
				b.Fatal(decision)
			}
		}
	})
	b.Run("kubelet-serving", func(b *testing.B) {
		req, facts := serving()
		for b.Loop() {
			facts.asked = nil
			if decision := judgeGiven(req, facts); decision.Verdict != verdict.Approve {
				b.Fatal(decision)
			}
		}
	})
}
