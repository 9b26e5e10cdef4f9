package rotation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// books are the ledgers, by Secret.
type books struct {
	mu       sync.Mutex
	bySecret map[types.NamespacedName]*ledger.Book
}

// ledger is that of obj's Secret.
func (r *Reconciler) ledger(obj *v1alpha1.SigningAuthority) *ledger.Book {
	r.books.mu.Lock()
	defer r.books.mu.Unlock()
	name := secretName(obj)
	if r.books.bySecret == nil {
		r.books.bySecret = map[types.NamespacedName]*ledger.Book{}
	}
	if r.books.bySecret[name] == nil {
		r.books.bySecret[name] = ledger.NewBook(r.Client, r.Live, name, r.Clock)
	}
	return r.books.bySecret[name]
}
