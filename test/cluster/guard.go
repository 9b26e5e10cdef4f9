package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// guardScript reads process ids, one a line, until its input ends without a line "done", as it does when the process at
// the other end was killed or timed out. Then it ends those processes, and those whose ids are in the folder $1, and
// removes it.
const guardScript = `pids=
while read -r pid; do [ "$pid" = done ] && exit 0; pids="$pids $pid"; done
pids="$pids $(cat "$1"/*.pid 2>/dev/null)"
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
rm -rf "$1"`

// wrapper notes the process id of a binary in $DIR, so that the guard knows it, and becomes it.
const wrapper = "#!/bin/sh\necho $$ > %q\nexec %q \"$@\"\n"

// guard ends what a test started when the test itself can't any more.
type guard struct {
	command *exec.Cmd
	input   io.WriteCloser
}

// startGuard starts a guard in a session of its own, so that Ctrl-C does not end it first.
func startGuard(dir string) (*guard, error) {
	command := exec.Command("sh", "-c", guardScript, "guard", dir)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return &guard{command: command, input: input}, nil
}

// stop ends the guard: its processes have been ended.
func (g *guard) stop() error {
	_, _ = io.WriteString(g.input, "done\n")
	_ = g.input.Close()
	return g.command.Wait()
}

// Guard has the process ended if ours can't do it, because it was killed or timed out.
func (c *Cluster) Guard(process *os.Process) {
	_, _ = fmt.Fprintln(c.guard.input, process.Pid)
}

// wrap returns the path of a script in dir that runs the binary of that name in KUBEBUILDER_ASSETS.
func wrap(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	script := fmt.Sprintf(wrapper, path+".pid", filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name))
	return path, os.WriteFile(path, []byte(script), 0o700)
}
