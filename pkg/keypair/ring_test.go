package keypair

import (
	"maps"
	"reflect"
	"testing"
	"time"
)

func full() Ring {
	return Ring{
		TLS:       Pair{[]byte("tc"), []byte("tk")},
		Signing:   Pair{[]byte("sc"), []byte("sk")},
		Candidate: Pair{[]byte("cc"), []byte("ck")},
		Retiring:  Pair{[]byte("rc"), []byte("rk")},
		Permit:    Permit{Authority: "cluster", Signers: []string{"example.com/client"}, LifetimeCap: time.Hour},
	}
}

func TestRoundTrip(t *testing.T) {
	data := map[string][]byte{"else": []byte("kept")}
	if err := full().WriteTo(data); err != nil {
		t.Fatal(err)
	}
	got, err := ParseRing(data)
	if err != nil || !reflect.DeepEqual(got, full()) {
		t.Errorf("got %+v, %v", got, err)
	}
	if len(data) != 10 || string(data["else"]) != "kept" {
		t.Errorf("data has %d keys: %v", len(data), data)
	}
}

// TestWriteRemoves checks that WriteTo leaves nothing of a removed pair's key, and that tls.crt and tls.key stay.
func TestWriteRemoves(t *testing.T) {
	data := map[string][]byte{}
	if err := full().WriteTo(data); err != nil {
		t.Fatal(err)
	}
	if err := (Ring{}).WriteTo(data); err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"tls.crt": {}, "tls.key": {}}
	if !maps.EqualFunc(data, want, func(a, b []byte) bool { return string(a) == string(b) }) {
		t.Errorf("left %v", data)
	}
}

func TestParseRefusesABrokenPermit(t *testing.T) {
	if _, err := ParseRing(map[string][]byte{"authority.json": []byte("{")}); err == nil {
		t.Error("no error")
	}
}
