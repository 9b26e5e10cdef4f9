package pending

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestOrderedIsAList compares each answer with that of a plain list.
func TestOrderedIsAList(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var all ordered
	var list []item // the oldest first
	for i := range 6000 {
		created := now.Add(time.Duration(random.IntN(500)) * time.Second)
		switch what := random.IntN(8); {
		case what < 5 || len(list) == 0:
			added := item{fmt.Sprint(i), created}
			all.add(added.name, created)
			at := slices.IndexFunc(list, func(other item) bool { return other.created.After(created) })
			if at < 0 {
				at = len(list)
			}
			list = slices.Insert(list, at, added)
		case what == 5:
			if got, want := all.takeNewest(), newest(list).name; got != want {
				t.Fatalf("took %s, want %s", got, want)
			}
			list = list[:len(list)-1]
		default:
			at := random.IntN(len(list))
			if got := all.index(list[at].name, list[at].created); got != at {
				t.Fatalf("index %d, want %d", got, at)
			}
			if what == 6 {
				all.remove(list[at].name, list[at].created)
				list = slices.Delete(list, at, at+1)
			}
		}
		if all.count != len(list) || all.index("none", created) != -1 {
			t.Fatalf("%d requests, want %d", all.count, len(list))
		}
		next := slices.IndexFunc(list, func(other item) bool { return other.created.After(created) })
		if name, found := all.after(created); found != (next >= 0) || found && name != list[next].name {
			t.Fatalf("%q, %t comes after %s, want number %d", name, found, created, next)
		}
		most := random.IntN(2000)
		var want []string
		for _, item := range list[max(0, len(list)-most):] {
			want = append(want, item.name)
		}
		if got := all.last(most); !slices.Equal(got, want) {
			t.Fatalf("the last %d are %s, want %s", most, got, want)
		}
	}
}

// After a restart, the requests of one requester arrive in the order of their names. An addition moves at most one
// chunk, however many requests there are, because no chunk is long, and few are short.
func TestManyRequestsOfOneRequesterComeInAnyOrder(t *testing.T) {
	t.Parallel()
	const many = 20_000
	var all ordered
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(many) {
		all.add(fmt.Sprint(i), now.Add(time.Duration(i)*time.Second))
		if longest := slices.MaxFunc(all.chunks, func(a, b []item) int { return len(a) - len(b) }); len(longest) > chunk {
			t.Fatalf("a chunk has %d requests", len(longest))
		}
	}
	if len(all.chunks) > 4*many/chunk {
		t.Errorf("%d requests are in %d chunks", many, len(all.chunks))
	}
}
