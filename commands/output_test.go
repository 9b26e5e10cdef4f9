package commands

import (
	"bytes"
	"io"
	"testing"
)

func TestOutputFormats(t *testing.T) {
	t.Parallel()
	value := struct {
		NodeName string `json:"nodeName"`
	}{"node-1"}
	for format, want := range map[string]string{
		"table": "NODE\n", "json": "{\n  \"nodeName\": \"node-1\"\n}\n", "yaml": "nodeName: node-1\n",
	} {
		var o Output
		var out bytes.Buffer
		if err := o.Set(format); err != nil {
			t.Fatal(err)
		}
		err := o.write(&out, value, func(out io.Writer) error {
			_, err := io.WriteString(out, "NODE\n")
			return err
		})
		if err != nil || out.String() != want {
			t.Errorf("%s: error %v, printed %q", format, err, out.String())
		}
	}
	if o := Output(""); o.Set("xml") == nil || o.String() != "table" {
		t.Errorf("an unknown format is accepted: %q", o)
	}
}
