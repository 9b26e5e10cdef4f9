package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCharts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report := filepath.Join(dir, "bench.json")
	if err := os.WriteFile(report, []byte(`{
  "metrics": [
    {"key": "rate", "title": "certificates/s", "chart": true}, {"key": "p50", "title": "p50 ms", "chart": true},
    {"key": "calls", "title": "API calls", "chart": false}
  ],
  "cases": [{"scenario": "burst", "name": "2,000 requests", "rounds": [
    {"entry": "ours", "values": {"rate": 300, "calls": 2}}, {"entry": "floor", "values": {"rate": 250}},
    {"entry": "ours", "values": {"rate": 320, "calls": 2}}
  ]}]
}`), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "charts")
	if err := charts(report, folder); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 || files[0].Name() != "burst-certificates-s.svg" {
		t.Fatalf("charts are %v, want only burst-certificates-s.svg", files)
	}
	drawn, err := os.ReadFile(filepath.Join(folder, files[0].Name()))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"ours", "floor", "2,000 requests", "certificates/s"} {
		if !strings.Contains(string(drawn), text) {
			t.Errorf("the chart has no %q", text)
		}
	}
}
