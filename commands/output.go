package commands

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Output is how a command prints its result. It is the value of the flag -o.
type Output string

// The values of Output.
const (
	TableOutput Output = "table"
	JSONOutput  Output = "json"
	YAMLOutput  Output = "yaml"
)

var _ pflag.Value = new(Output)

// String returns the format, which is TableOutput if none was set.
func (o *Output) String() string {
	if *o == "" {
		return string(TableOutput)
	}
	return string(*o)
}

// Set sets the format. It returns an error for an unknown one.
func (o *Output) Set(text string) error {
	switch format := Output(text); format {
	case TableOutput, JSONOutput, YAMLOutput:
		*o = format
		return nil
	}
	return fmt.Errorf("want %s, %s or %s", TableOutput, JSONOutput, YAMLOutput)
}

// Type names the value in the usage text.
func (*Output) Type() string { return "format" }

// bind adds the flag -o to cmd.
func (o *Output) bind(cmd *cobra.Command) {
	cmd.Flags().VarP(o, "output", "o", "`format` of the output: table, json or yaml")
	formats := []cobra.Completion{string(TableOutput), string(JSONOutput), string(YAMLOutput)}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// write writes value to out as JSON or YAML, or calls table for the format of a terminal. The fields of value have
// lower-camel names in their json tags, and keep them: scripts read them.
func (o *Output) write(out io.Writer, value any, table func(io.Writer) error) error {
	var text []byte
	var err error
	switch Output(o.String()) {
	case JSONOutput:
		if text, err = json.MarshalIndent(value, "", "  "); err == nil {
			text = append(text, '\n')
		}
	case YAMLOutput:
		text, err = yaml.Marshal(value)
	default:
		return table(out)
	}
	if err != nil {
		return fmt.Errorf("write the result as %s: %w", o, err)
	}
	_, err = out.Write(text)
	return err
}
