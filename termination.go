package main

import (
	"fmt"
	"os"
)

// terminationLog is where a kubelet reads why a container ended. The file exists in Pods alone.
const terminationLog = "/dev/termination-log"

// longestTermination is what a kubelet keeps of the file: its last bytes.
const longestTermination = 4096

// noteTermination writes message to the file at path, if there is one. The status of the Pod then shows the message, with
// any terminationMessagePolicy.
func noteTermination(path, message string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write termination log: %w", err)
	}
	if _, err := file.WriteString(message[:min(len(message), longestTermination)]); err != nil {
		_ = file.Close()
		return fmt.Errorf("write termination log: %w", err)
	}
	return file.Close()
}
