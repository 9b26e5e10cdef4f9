package lastgood

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// show describes a state, for comparison.
func show(s State[int]) string { return fmt.Sprintf("%d %t %v", s.Good, s.Known, s.Problem) }

func TestValue(t *testing.T) {
	var reports []string
	v := Value[int]{
		Same:   func(a, b int) bool { return a == b },
		Report: func(before, after State[int]) { reports = append(reports, show(before)+" -> "+show(after)) },
	}
	woken, second := v.Subscribe(), v.Subscribe()
	bad, worse := errors.New("bad"), errors.New("worse")
	for _, step := range []struct {
		what   string
		do     func()
		want   string
		report string // empty means no report
		wakes  bool
	}{
		{"at first", func() {}, "0 false <nil>", "", false},
		{"a bad version", func() { v.Refuse(bad) }, "0 false bad", "0 false <nil> -> 0 false bad", false},
		{"another with the same mistake", func() { v.Refuse(errors.New("bad")) }, "0 false bad", "", false},
		{"a good version", func() { v.Use(1, nil) }, "1 true <nil>", "0 false bad -> 1 true <nil>", true},
		{"the same", func() { v.Use(1, nil) }, "1 true <nil>", "", false},
		{"a bad version never replaces it", func() { v.Refuse(bad) }, "1 true bad", "1 true <nil> -> 1 true bad", false},
		{"a worse version neither", func() { v.Refuse(worse) }, "1 true worse", "1 true bad -> 1 true worse", false},
		{"the good version returns", func() { v.Use(1, nil) }, "1 true <nil>", "1 true worse -> 1 true <nil>", true},
		{"twice more, before a subscriber reads", func() { v.Use(3, nil); v.Use(1, nil) }, "1 true <nil>",
			"1 true <nil> -> 3 true <nil>, 3 true <nil> -> 1 true <nil>", true},
		{"it has a mistake", func() { v.Use(1, bad) }, "1 true bad", "1 true <nil> -> 1 true bad", false},
		{"the same mistake", func() { v.Use(1, errors.New("bad")) }, "1 true bad", "", false},
		{"another version with the mistake", func() { v.Use(2, bad) }, "2 true bad", "1 true bad -> 2 true bad", true},
		{"it is forgotten", func() { v.Forget(bad) }, "0 false bad", "2 true bad -> 0 false bad", false},
		{"nothing is left to forget", func() { v.Forget(bad) }, "0 false bad", "", false},
		{"a zero version is a version", func() { v.Use(0, bad) }, "0 true bad", "0 false bad -> 0 true bad", true},
	} {
		reports = nil
		step.do()
		expect.Equal(t, step.what+": reports", strings.Join(reports, ", "), step.report)
		expect.Equal(t, step.what, show(v.State()), step.want)
		expect.Equal(t, step.what+": wakes both", []bool{len(woken) == 1, len(second) == 1}, []bool{step.wakes, step.wakes})
		for len(woken) > 0 {
			<-woken
			<-second
		}
	}
}
