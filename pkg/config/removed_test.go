package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func TestRemovedFieldsSayWhatToDoInstead(t *testing.T) {
	t.Parallel()
	const (
		superseded = "cleaning.supersededAfter was removed: requests are deleted after cleaning.retention.pending; delete this field"
		apiServers = "signing.apiServers was removed: the signer reads which CAs the API servers trust from the ConfigMaps " +
			"extension-apiserver-authentication and kube-root-ca.crt in kube-system; delete this field"
	)
	for name, test := range map[string]struct{ file, want string }{
		"superseded requests":         {"cleaning: {supersededAfter: 30m}\n", "--config: FILE: " + superseded},
		"also a zero":                 {"cleaning:\n  supersededAfter: 0s\n", "--config: FILE: " + superseded},
		"also without a value":        {"signing: {apiServers: }\n", "--config: FILE: " + apiServers},
		"several at once":             {"signing: {apiServers: [a]}\ncleaning: {supersededAfter: 30m}\n", "--config: FILE: " + superseded + "\n" + apiServers},
		"the same name at the top":    {"supersededAfter: 30m\n", `--config: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "supersededAfter"`},
		"a section of another type":   {"cleaning: [supersededAfter]\n", `--config: FILE: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go struct field Configuration.cleaning of type config.Cleaning`},
		"a section without any value": {"cleaning:\nunknown: 1\n", `--config: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "unknown"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, header+test.file)
			_, err := config.Load([]string{"--config=" + path, "--signing-secret=ns/ca"})
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(strings.ReplaceAll(test.want, "FILE", path), err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}
