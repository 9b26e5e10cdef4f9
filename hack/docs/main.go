// Command docs checks the documentation. "docs links" checks every relative link and every anchor; "docs diagrams"
// renders every Mermaid diagram in a browser; "docs shots" writes pictures of the diagrams, of README and of the
// commands' output.
// It is a module of its own, so that the manager's module needs no Markdown parser.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "root `directory` of the repository")
	flag.Parse()
	if err := run(*root, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

// run executes the command that args name.
func run(root string, args []string) error {
	if len(args) == 0 {
		return errors.New(`no command: want "links", "diagrams" or "shots"`)
	}
	switch args[0] {
	case "links":
		return links(root)
	case "diagrams":
		return diagrams(root)
	case "shots":
		return shots(root)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}
