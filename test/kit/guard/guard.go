// Package guard ends the processes of a test, a demo or a benchmark that can't end them itself, because it was killed
// or timed out.
package guard

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// script reads processes to end, as arguments of kill, until its input ends. If the last line is not "done", it ends
// the remaining processes, and the processes whose IDs are in *.pid in the folder $1. It then unmounts what is mounted in
// that folder, and removes it.
const script = `targets=
while read -r verb target; do
  case $verb in
  done) exit 0 ;;
  add) targets="$targets $target" ;;
  drop) left=; for one in $targets; do [ "$one" = "$target" ] || left="$left $one"; done; targets=$left ;;
  esac
done
for target in $targets $(cat "$1"/*.pid 2>/dev/null); do kill -9 "$target" 2>/dev/null; done
grep -F " $1/" /proc/self/mounts 2>/dev/null | while read -r device mount rest; do umount -l "$mount"; done
for try in 1 2 3; do rm -rf "$1" && exit 0; sleep 1; done`

// Guard is a process that waits for the end of this one.
type Guard struct {
	command *exec.Cmd
	input   io.WriteCloser
}

// Start starts a guard that will remove dir. The guard has its own POSIX session, so that Ctrl-C does not end it
// first.
func Start(dir string) (*Guard, error) {
	command := exec.Command("sh", "-c", script, "guard", dir)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return &Guard{command: command, input: input}, nil
}

// Process adds a process that the guard must end. Call release after the process has been waited for: another process
// may get its ID then.
func (g *Guard) Process(pid int) (release func()) { return g.add(strconv.Itoa(pid)) }

// Group adds a process group, as Process adds a process.
func (g *Guard) Group(pgid int) (release func()) { return g.add("-" + strconv.Itoa(pgid)) }

func (g *Guard) add(target string) (release func()) {
	_, _ = fmt.Fprintln(g.input, "add", target)
	return func() { _, _ = fmt.Fprintln(g.input, "drop", target) }
}

// Stop ends the guard. Unless done is true, the guard first ends the remaining processes and removes the folder.
func (g *Guard) Stop(done bool) error {
	if done {
		_, _ = fmt.Fprintln(g.input, "done")
	}
	_ = g.input.Close()
	return g.command.Wait()
}
