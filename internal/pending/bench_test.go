package pending

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// BenchmarkQueue takes a request of 60,000 and puts it back.
func BenchmarkQueue(b *testing.B) {
	const waiting = 60000
	for _, requesters := range []int{1, 2000} {
		b.Run(fmt.Sprintf("requesters=%d", requesters), func(b *testing.B) {
			requests := make(map[string]Request, waiting)
			keys := make([]reconcile.Request, waiting)
			for i := range keys {
				name := fmt.Sprintf("csr-%d", i)
				keys[i] = keyOf(name)
				requests[name] = Request{
					Name: name, Created: now.Add(time.Duration(i) * time.Second),
					Key: Key{Requester: DigestOf(fmt.Sprint(i % requesters)), Node: DigestOf(name)},
				}
			}
			queue := NewQueue(func(name string) (Request, bool) {
				request, found := requests[name]
				return request, found
			})
			for _, key := range keys {
				queue.Push(key)
			}
			b.ReportAllocs()
			for b.Loop() {
				queue.Push(queue.Pop())
			}
		})
	}
}
