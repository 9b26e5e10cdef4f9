package parity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// The reasons why waiting ended too early. Only the first can be due to a slow machine. The mutants read these texts.
var (
	errQuiet = errors.New("nothing happens any more")
	errWrong = errors.New("this can't become right")
	errEnded = errors.New("the program has ended by itself")
)

// settle waits until every object is in its wanted state, and gives up when nothing has changed for a while.
func (p *pass) settle(t *testing.T, wanted map[string]string) bool {
	t.Helper()
	var open []string
	last, since := "", time.Now()
	err := wait.PollUntilContextCancel(t.Context(), pollInterval, true, func(context.Context) (bool, error) {
		objs := p.list(t)
		var wrong []string
		open, wrong = compareStates(objs, wanted)
		if now := fmt.Sprint(len(open), len(objs)); now != last {
			p.awake = p.awake || last != ""
			last, since = now, time.Now()
		}
		quiet := time.Since(since)
		switch {
		case p.running.over():
			return false, errEnded
		case p.hasty && len(wrong) > 0:
			open = wrong
			return false, errWrong
		case len(open) > 0 && (quiet > patience || quiet > p.patience && p.awake):
			return false, errQuiet
		}
		return len(open) == 0, nil
	})
	if err != nil {
		t.Logf("%s: %v: %s", p.id, err, strings.Join(open, "; "))
	}
	if err != nil && p.hasty {
		t.FailNow()
	}
	return err == nil
}

// compareStates returns the objects that are not in their wanted states, and those that never will be.
func compareStates(objs map[string]*certificatesv1.CertificateSigningRequest, wanted map[string]string) (open, wrong []string) {
	for name, want := range wanted {
		got := stateOf(objs[name])
		if got == want {
			continue
		}
		is := fmt.Sprintf("%s is %q", name, got)
		open = append(open, is)
		// A condition is never removed, and new ones are appended.
		if want != gone && got != "" && !strings.HasPrefix(want, got+" ") {
			wrong = append(wrong, is)
		}
	}
	return open, wrong
}
