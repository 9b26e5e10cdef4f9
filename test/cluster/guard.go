package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// guardScript reads process ids, one a line and with a minus once that process has ended, until its input ends. Without
// a line "done" then, as when the process at the other end was killed or timed out, it ends the processes that are left,
// and those whose ids are in the folder $1, and removes it.
const guardScript = `pids=
while read -r line; do
  case $line in
  done) exit 0 ;;
  -*) left=; for pid in $pids; do [ "-$pid" = "$line" ] || left="$left $pid"; done; pids=$left ;;
  *) pids="$pids $line" ;;
  esac
done
pids="$pids $(cat "$1"/*.pid 2>/dev/null)"
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
rm -rf "$1"`

// wrapper notes the process id of a binary in $DIR, so that the guard knows it, and becomes it.
const wrapper = "#!/bin/sh\necho $$ > %s\nexec %s \"$@\"\n"

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

// stop ends the guard; unless done, it first ends what is left.
func (g *guard) stop(done bool) error {
	if done {
		_, _ = io.WriteString(g.input, "done\n")
	}
	_ = g.input.Close()
	return g.command.Wait()
}

// Guard has the process ended if ours can't do it, because it was killed or timed out. Call release once the process has
// been waited for: its id may be another one's then.
func (c *Cluster) Guard(process *os.Process) (release func()) {
	_, _ = fmt.Fprintf(c.guard.input, "%d\n", process.Pid)
	return func() { _, _ = fmt.Fprintf(c.guard.input, "-%d\n", process.Pid) }
}

// wrap returns the path of a script in dir that runs the binary of that name in KUBEBUILDER_ASSETS.
func wrap(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	script := fmt.Sprintf(wrapper, quote(path+".pid"), quote(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name)))
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// quote makes one word of the shell's of text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
