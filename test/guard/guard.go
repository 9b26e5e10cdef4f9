// Package guard ends what a test, a demo or a benchmark started when that can't do so itself any more, because it was
// killed or timed out.
package guard

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// script reads what to end, as arguments of kill, until its input ends. Without a line "done" then, it ends what is
// left, and the processes whose ids are in *.pid in the folder $1, and removes that folder.
const script = `targets=
while read -r verb target; do
  case $verb in
  done) exit 0 ;;
  add) targets="$targets $target" ;;
  drop) left=; for one in $targets; do [ "$one" = "$target" ] || left="$left $one"; done; targets=$left ;;
  esac
done
for target in $targets $(cat "$1"/*.pid 2>/dev/null); do kill -9 "$target" 2>/dev/null; done
for try in 1 2 3; do rm -rf "$1" && exit 0; sleep 1; done`

// Guard is a process that waits for the end of this one.
type Guard struct {
	command *exec.Cmd
	input   io.WriteCloser
}

// Start starts a guard that will remove dir. It is in a POSIX session of its own, so that Ctrl-C does not end it first.
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

// Process has a process ended. Call release once it has been waited for: its id may be another one's then.
func (g *Guard) Process(pid int) (release func()) { return g.add(strconv.Itoa(pid)) }

// Group is Process for a process group.
func (g *Guard) Group(pgid int) (release func()) { return g.add("-" + strconv.Itoa(pgid)) }

func (g *Guard) add(target string) (release func()) {
	_, _ = fmt.Fprintln(g.input, "add", target)
	return func() { _, _ = fmt.Fprintln(g.input, "drop", target) }
}

// Stop ends the guard; unless done, it first ends what is left and removes the folder.
func (g *Guard) Stop(done bool) error {
	if done {
		_, _ = fmt.Fprintln(g.input, "done")
	}
	_ = g.input.Close()
	return g.command.Wait()
}
