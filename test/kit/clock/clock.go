// Package clock shifts the wall clock of one running process, so that a test can have programs whose clocks differ.
package clock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Go reads clocks with clockGettime, a function of the vDSO, a library that the kernel maps into each process. See vdso(7). Shift
// replaces its first instruction with a jump to shiftedClock, which takes the place of clockGetres. Go does not call that function.
const clockGettime, clockGetres = "__vdso_clock_gettime", "__vdso_clock_getres"

// shiftedClock is machine code for amd64. It makes the system call, and adds the eight bytes of seconds at shiftedSeconds to the
// result if the clock is CLOCK_REALTIME.
var shiftedClock = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, 228: SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 13, // jne to ret
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // movabs rcx, the seconds
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

const shiftedSeconds = 13

// Shift shifts the wall clock of a running Go program by whole seconds, and leaves its monotonic clock. Another call replaces the
// shift. It works on amd64 only, and needs the permission to trace the process, which the parent of a process has.
//
// Programs in C may read the clock with another function.
func Shift(pid int, by time.Duration) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("shift the clock of process %d: %w", pid, err)
		}
	}()
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("there is no machine code for %s, only for amd64", runtime.GOARCH)
	}
	if by%time.Second != 0 {
		return fmt.Errorf("%s is not a number of whole seconds", by)
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }()
	functions, err := functionsOf(pid, memory)
	if err != nil {
		return err
	}
	entry, unused := int64(functions[clockGettime].Value), int64(functions[clockGetres].Value)
	if size := functions[clockGetres].Size; entry == 0 || size < uint64(len(shiftedClock)) {
		return fmt.Errorf("%s is at %x, and %s has %d bytes, of which %d are needed", clockGettime, entry, clockGetres, size, len(shiftedClock))
	}
	code, jump := bytes.Clone(shiftedClock), []byte{0xe9, 0, 0, 0, 0}
	binary.LittleEndian.PutUint64(code[shiftedSeconds:], uint64(by/time.Second))
	binary.LittleEndian.PutUint32(jump[1:], uint32(int32(unused-entry-int64(len(jump)))))
	return write(pid, memory, []patch{{unused, code}, {entry, jump}})
}

// patch is code for an address.
type patch struct {
	at   int64
	code []byte
}

// write writes the patches while the process is stopped, and no thread executes the code that they replace.
func write(pid int, memory *os.File, patches []patch) error {
	for range 100 {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		free, err := isFree(pid, patches)
		for _, one := range patches {
			if free && err == nil {
				_, err = memory.WriteAt(one.code, one.at)
			}
		}
		if err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); free || err != nil {
			return err
		}
	}
	return errors.New("the process does not stop, or a thread always reads the clock")
}

// functionsOf returns the functions in the vDSO of a process with that memory. Their values are addresses in that memory.
func functionsOf(pid int, memory *os.File) (map[string]elf.Symbol, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var start, end int64
	line := regexp.MustCompile(`(?m)^.* \[vdso\]$`).Find(maps)
	if _, err := fmt.Sscanf(string(line), "%x-%x", &start, &end); err != nil {
		return nil, fmt.Errorf("no vDSO in %q: %w", maps, err)
	}
	library, err := elf.NewFile(io.NewSectionReader(memory, start, end-start))
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := library.DynamicSymbols()
	functions := map[string]elf.Symbol{}
	for _, symbol := range symbols {
		symbol.Value += uint64(start)
		functions[symbol.Name] = symbol
	}
	return functions, err
}

// isFree waits until the process has stopped, and reports whether no thread is inside the patches.
func isFree(pid int, patches []patch) (bool, error) {
	for range 1000 {
		if runs, inside, err := executes(pid, patches); !runs || err != nil {
			return !inside && err == nil, err
		}
		time.Sleep(time.Millisecond)
	}
	return false, nil
}

// executes reports whether a thread of a process still runs, and whether one has its program counter inside the patches. A thread that
// does not run and gets SIGSTOP executes nothing before SIGCONT. See proc_pid_syscall(5).
func executes(pid int, patches []patch) (runs, inside bool, err error) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if len(files) == 0 {
		return false, false, errors.New("the process has ended")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil || strings.TrimSpace(string(text)) == "running" {
			return true, false, err
		}
		fields := strings.Fields(string(text))
		counter, err := strconv.ParseInt(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return false, false, fmt.Errorf("%s: %q: %w", file, text, err)
		}
		inside = inside || slices.ContainsFunc(patches, func(one patch) bool { return counter >= one.at && counter < one.at+int64(len(one.code)) })
	}
	return false, inside, nil
}
