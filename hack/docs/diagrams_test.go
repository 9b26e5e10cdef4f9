package docs

import (
	"context"
	"crypto/sha256"
	_ "embed" // the lock file
	"encoding/hex"
	"encoding/json"
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
	pages, _, err := readPages(root)
	succeed(t, err)
	all := []diagram{{path: "a wrong diagram", text: "flowchart LR\n  a -->|\n"}}
	for _, p := range sorted(pages) {
		all = append(all, p.diagrams...)
	}
	problems := render(t, all)
	if len(problems) != len(all) || !strings.Contains(problems[0], "Parse error") {
		t.Fatalf("%d diagrams, of which the first is wrong: %q", len(all), problems)
	}
	for i, d := range all[1:] {
		if problem := problems[i+1]; problem != "" {
			t.Errorf("%s:%d: diagram does not render: %s", d.path, d.line, problem)
		}
	}
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
var result = regexp.MustCompile(`(?s)<pre id="result">(.+?)</pre>`)

// render returns what is wrong with each diagram, or "".
func render(t *testing.T, diagrams []diagram) (problems []string) {
	t.Helper()
	dir := t.TempDir()
	var texts []string
	for _, d := range diagrams {
		texts = append(texts, d.text)
	}
	list, err := json.Marshal(texts)
	succeed(t, err)
	page := filepath.Join(dir, "diagrams.html")
	write(t, page, fmt.Sprintf(renderPage, bundle(t), list))
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
	found := result.FindStringSubmatch(output(t, dir, browser, args...))
	if found == nil {
		t.Fatal("the browser did not render the diagrams in time")
	}
	succeed(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), &problems))
	return problems
}

// bundle returns the path of Mermaid's bundle in bin/docs. It installs the locked version if the bundle is not there.
func bundle(t *testing.T) string {
	t.Helper()
	sum := sha256.Sum256(lockFile)
	dir, err := filepath.Abs(filepath.Join(root, "bin", "docs", hex.EncodeToString(sum[:6])))
	succeed(t, err)
	file, install := filepath.Join(dir, "mermaid.min.js"), filepath.Join(dir, "npm")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	write(t, filepath.Join(install, "package.json"), string(packageFile))
	write(t, filepath.Join(install, "package-lock.json"), string(lockFile))
	output(t, install, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	succeed(t, os.Rename(filepath.Join(install, "node_modules", "mermaid", "dist", "mermaid.min.js"), file))
	succeed(t, os.RemoveAll(install))
	return file
}

// output runs a program in dir and returns its standard output. .ci/packages installs the programs.
func output(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var problems strings.Builder
	command := exec.CommandContext(ctx, program, args...)
	command.Dir, command.Stderr = dir, &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s, which .ci/packages installs: %v: %s", program, err, problems.String())
	}
	return string(out)
}
