package docs

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the lock file
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

//go:embed package.json
var packageFile []byte

//go:embed package-lock.json
var lockFile []byte

// patience bounds how long npm or the browser may take.
const patience = 5 * time.Minute

// TestDiagrams renders every Mermaid diagram of the pages in Chromium, and one that must not render.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	pages, err := readPages(root)
	if err != nil {
		t.Fatal(err)
	}
	all := []diagram{{path: "a wrong diagram", text: "flowchart LR\n  a -->|\n"}}
	for _, p := range sorted(pages) {
		all = append(all, p.diagrams...)
	}
	problems, err := render(all)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(problems[0], "Parse error") {
		t.Errorf("%s renders, or has another problem: %q", all[0].path, problems[0])
	}
	for i, d := range all[1:] {
		if problem := problems[i+1]; problem != "" {
			t.Errorf("%s:%d: diagram does not render: %s", d.path, d.line, problem)
		}
	}
	t.Logf("%d diagrams", len(all)-1)
}

// renderPage renders the diagrams one after the other, and leaves what is wrong with each as JSON in the element "result".
const renderPage = `<!DOCTYPE html>
<meta charset="utf-8">
<script src="file://%s"></script>
<script id="diagrams" type="application/json">%s</script>
<pre id="result"></pre>
<script>
(async () => {
  const problems = [];
  mermaid.initialize({startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true});
  for (const [i, text] of JSON.parse(document.getElementById("diagrams").textContent).entries()) {
    try {
      const {svg} = await mermaid.render("diagram" + i, text);
      const box = new DOMParser().parseFromString(svg, "text/html").querySelector("svg").viewBox.baseVal;
      problems.push(box.width > 0 && box.height > 0 ? "" : "the image is empty");
    } catch (error) {
      problems.push(String(error && error.message || error));
    }
  }
  document.getElementById("result").textContent = JSON.stringify(problems);
})();
</script>
`

// result finds the problems in the page that the browser prints.
var result = regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`)

// render returns what is wrong with each diagram, or "".
func render(diagrams []diagram) (problems []string, err error) {
	script, err := bundle()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "docs-diagrams-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var texts []string
	for _, d := range diagrams {
		texts = append(texts, d.text)
	}
	list, err := json.Marshal(texts)
	if err != nil {
		return nil, err
	}
	page := filepath.Join(dir, "diagrams.html")
	if err := os.WriteFile(page, fmt.Appendf(nil, renderPage, script, list), 0o600); err != nil {
		return nil, err
	}
	args := []string{
		"--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
		"--disable-component-update", "--user-data-dir=" + filepath.Join(dir, "profile"), "--virtual-time-budget=120000",
		"--dump-dom", "file://" + page,
	}
	if os.Getuid() == 0 { // Chromium's sandbox does not work for root
		args = append([]string{"--no-sandbox"}, args...)
	}
	browser := "chromium"
	if _, err := exec.LookPath(browser); err != nil {
		browser = "google-chrome"
	}
	out, err := output(dir, browser, args...)
	if err != nil {
		return nil, err
	}
	found := result.FindSubmatch(out)
	if len(found) == 0 || len(found[1]) == 0 {
		return nil, errors.New("the browser did not render the diagrams in time")
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &problems); err != nil {
		return nil, err
	}
	if len(problems) != len(diagrams) {
		return nil, fmt.Errorf("the browser rendered %d of %d diagrams", len(problems), len(diagrams))
	}
	return problems, nil
}

// bundle returns the path of Mermaid's bundle in bin/docs. It installs the locked version if the bundle is not there.
func bundle() (string, error) {
	sum := sha256.Sum256(lockFile)
	dir, err := filepath.Abs(filepath.Join(root, "bin", "docs", hex.EncodeToString(sum[:6])))
	if err != nil {
		return "", err
	}
	file, install := filepath.Join(dir, "mermaid.min.js"), filepath.Join(dir, "npm")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(install, 0o755); err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{"package.json": packageFile, "package-lock.json": lockFile} {
		if err := os.WriteFile(filepath.Join(install, name), content, 0o644); err != nil {
			return "", err
		}
	}
	if _, err := output(install, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		return "", err
	}
	built := filepath.Join(install, "node_modules", "mermaid", "dist", "mermaid.min.js")
	return file, errors.Join(os.Rename(built, file), os.RemoveAll(install))
}

// output runs a program in dir and returns its standard output. .ci/packages installs the programs.
func output(dir, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, problems bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Dir, command.Stdout, command.Stderr = dir, &out, &problems
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s, which .ci/packages installs: %w: %s", program, err, problems.Bytes())
	}
	return out.Bytes(), nil
}
