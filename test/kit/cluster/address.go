package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// The ports of FreeAddress begin at firstPort. Every process begins at another one of them.
const firstPort = 12000

var portsGiven atomic.Int64

func init() { portsGiven.Store(rand.Int64N(1 << 16)) }

// FreeAddress returns an address on which a process can listen. The kernel gives its port to no connection, so the address stays free
// before the process listens and while it is restarted. No address is returned twice, unless all have been.
func FreeAddress() (string, error) {
	end, err := firstOfConnections()
	if err != nil {
		return "", err
	}
	for range end - firstPort {
		port := firstPort + portsGiven.Add(1)%int64(end-firstPort)
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find a free port: %w", err)
		}
		return address, listener.Close()
	}
	return "", fmt.Errorf("no port from %d to %d is free", firstPort, end-1)
}

// firstOfConnections returns the first of the ports that the kernel gives to connections
// (https://docs.kernel.org/networking/ip-sysctl.html, ip_local_port_range).
func firstOfConnections() (int, error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) { // not Linux: others begin at 49152
		return 32768, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the ports of connections: %w", err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0, fmt.Errorf("%s is %q: %w", file, text, err)
	}
	if first < firstPort+1000 {
		return 0, fmt.Errorf("%s is %q: it leaves too few ports from %d on", file, text, firstPort)
	}
	return first, nil
}
