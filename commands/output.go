package commands

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// outputFlag adds -o to cmd and returns its value. what names the format without -o.
func outputFlag(cmd *cobra.Command, what string) *string {
	return cmd.Flags().StringP("output", "o", "", "output `format`: json or yaml (default "+what+")")
}

// checkOutput returns an error unless format is known. "table" is the default format by name.
func checkOutput(format string) error {
	if format == "" || format == "table" || isFields(format) {
		return nil
	}
	return fmt.Errorf("-o %s: unknown output format; use table, json or yaml", format)
}

// isFields reports whether format is one for scripts.
func isFields(format string) bool { return format == "json" || format == "yaml" }

// writeFields writes value as JSON or YAML. Text of value that is not printable ASCII is escaped, so that it cannot
// change a terminal.
func writeFields(out io.Writer, format string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	data = append(ascii.JSON(data), '\n')
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
		data = []byte(ascii.Lines(string(data)))
	}
	_, err = out.Write(data)
	return err
}
