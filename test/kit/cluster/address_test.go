package cluster

import (
	"net"
	"strconv"
	"testing"
)

func TestFreeAddressIsOfNoConnection(t *testing.T) {
	t.Parallel()
	end, err := firstOfConnections()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 100 {
		address, err := FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		if port, err := strconv.Atoi(text); err != nil || port < firstPort || port >= end || seen[address] {
			t.Errorf("%s, error %v, again: %t", address, err, seen[address])
		}
		seen[address] = true
	}
}

// TestFreeAddressSkipsWhatIsInUse makes the next port that FreeAddress would return busy.
func TestFreeAddressSkipsWhatIsInUse(t *testing.T) {
	portsGiven.Store(7)
	busy, err := FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", busy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	portsGiven.Store(7)
	if next, err := FreeAddress(); err != nil || next == busy {
		t.Errorf("%s, error %v", next, err)
	}
}
