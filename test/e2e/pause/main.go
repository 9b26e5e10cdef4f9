// Command pause holds a pod's namespaces and reaps its orphans, as registry.k8s.io/pause does. As a pod's container,
// it runs until it is asked to stop. With arguments it prints them, and ends.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 1 { // by kubectl exec
		fmt.Println(strings.Join(os.Args[1:], " "))
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGCHLD)
	fmt.Println("running")
	for one := range signals {
		if one != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}
