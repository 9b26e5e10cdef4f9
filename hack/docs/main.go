// Command docs checks the documentation. "docs links" checks every relative link and every anchor; "docs diagrams"
// renders every Mermaid diagram in a browser; "docs shots" writes pictures of the diagrams, of README and of the
// commands' output.
// "docs charts REPORT FOLDER" draws charts of a benchmark's report.
// It is a module of its own, so that the manager's module needs no Markdown parser and no library for charts.
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
		return errors.New(`no command: want "links", "diagrams" "shots" or "charts"`)
	}
	switch args[0] {
	case "links":
		return links(root)
	case "diagrams":
		return diagrams(root)
	case "shots":
		return shots(root)
	case "charts":
		if len(args) != 3 {
			return errors.New("charts needs the file of a report and a folder")
		}
		return charts(args[1], args[2])
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}
