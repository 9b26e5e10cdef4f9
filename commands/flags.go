package commands

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// parse reads args, with flags and others in any order, and returns the others. Asked for help, it writes about and the flags
// to out, and returns flag.ErrHelp.
func parse(set *flag.FlagSet, args []string, about string, out io.Writer) ([]string, error) {
	set.SetOutput(io.Discard)
	var rest []string
	for {
		if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
			_, _ = io.WriteString(out, about)
			set.SetOutput(out)
			set.PrintDefaults()
			return nil, err
		} else if err != nil {
			return nil, err
		}
		if args = set.Args(); len(args) == 0 {
			return rest, nil
		}
		rest, args = append(rest, args[0]), args[1:]
	}
}

// atMost is an error about the first of args that is too many.
func atMost(most int, args []string) error {
	if len(args) <= most {
		return nil
	}
	return fmt.Errorf("unexpected argument %q", args[most])
}
