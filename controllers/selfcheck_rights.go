package controllers

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// split parts the rights without which the work does not go on from the others.
func split(rights []check.Right) (needed, optional []check.Right) {
	for _, right := range rights {
		if right.Optional {
			optional = append(optional, right)
		} else {
			needed = append(needed, right)
		}
	}
	return needed, optional
}

// ownRights asks for rights, and keeps for ready which are missing for certain. What could not be asked does not count.
func (s *selfCheck) ownRights(c client.Client, rights []check.Right) func(context.Context) []check.Result {
	return func(ctx context.Context) []check.Result {
		results := check.Rights(ctx, c, rights)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked, s.missing = true, missing(results)
		return results
	}
}

func missing(results []check.Result) error {
	var names []string
	for _, result := range results {
		if result.Status == check.Failed {
			names = append(names, result.Subject)
		}
	}
	if names == nil {
		return nil
	}
	return errors.New("missing rights: " + strings.Join(names, ", "))
}

// ready says what keeps us from being so: rights that are missing, or that nobody has asked yet.
func (s *selfCheck) ready(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked {
		return errors.New("not asked yet")
	}
	return s.missing
}
