package main

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
	"time"
)

//go:embed package.json
var packageFile []byte

//go:embed package-lock.json
var lockFile []byte

// patience bounds how long npm or the browser may take.
const patience = 5 * time.Minute

// bundle returns the path of Mermaid's bundle in bin/docs. It installs the locked version if the bundle is not there.
func bundle(root string) (string, error) {
	sum := sha256.Sum256(lockFile)
	dir, err := filepath.Abs(filepath.Join(root, "bin", "docs", hex.EncodeToString(sum[:6])))
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "mermaid.min.js")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New(`no npm to install Mermaid with: "apt-get install nodejs npm"`)
	}
	install := filepath.Join(dir, "npm")
	if err := os.MkdirAll(install, 0o755); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(install) }()
	for name, content := range map[string][]byte{"package.json": packageFile, "package-lock.json": lockFile} {
		if err := os.WriteFile(filepath.Join(install, name), content, 0o644); err != nil {
			return "", err
		}
	}
	fmt.Fprintln(os.Stderr, "docs: installing Mermaid; half a minute the first time")
	if _, err := output(install, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		return "", err
	}
	built := filepath.Join(install, "node_modules", "mermaid", "dist", "mermaid.min.js")
	return file, os.Rename(built, file)
}

// output runs a program in dir and returns its standard output.
func output(dir, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, problems bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Dir, command.Stdout, command.Stderr = dir, &out, &problems
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, problems.Bytes())
	}
	return out.Bytes(), nil
}

// browse runs a headless Chromium on page, a file, and returns its standard output.
func browse(page string, args ...string) ([]byte, error) {
	var browser string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		return nil, errors.New(`no browser to render the diagrams with: "apt-get install chromium"`)
	}
	profile, err := os.MkdirTemp("", "docs-chromium-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(profile) }()
	all := []string{
		"--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--disable-background-networking", "--disable-component-update", "--user-data-dir=" + profile,
		"--virtual-time-budget=120000",
	}
	if os.Getuid() == 0 { // Chromium's sandbox does not work for root
		all = append(all, "--no-sandbox")
	}
	return output(filepath.Dir(page), browser, append(append(all, args...), "file://"+page)...)
}

// rendered is what the browser made of a diagram: an image, or an error.
type rendered struct {
	SVG, Error string
	// Width and Height are those of the image, in pixels.
	Width, Height float64
}

// renderPage renders the diagrams one after the other, and leaves the results as JSON in the element "result".
const renderPage = `<!DOCTYPE html>
<meta charset="utf-8">
<script src="file://%s"></script>
<script id="diagrams" type="application/json">%s</script>
<pre id="result"></pre>
<script>
(async () => {
  const results = [];
  mermaid.initialize({
    startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, fontFamily: "sans-serif",
  });
  for (const [i, text] of JSON.parse(document.getElementById("diagrams").textContent).entries()) {
    try {
      const {svg} = await mermaid.render("diagram" + i, text);
      const box = new DOMParser().parseFromString(svg, "text/html").querySelector("svg").viewBox.baseVal;
      results.push({SVG: svg, Width: box.width, Height: box.height});
    } catch (error) {
      results.push({Error: String(error && error.message || error)});
    }
  }
  document.getElementById("result").textContent = JSON.stringify(results);
})();
</script>
`

// result finds the results in the page that the browser prints.
var result = regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`)

// render returns what the browser makes of each diagram.
func render(root string, diagrams []diagram) ([]rendered, error) {
	script, err := bundle(root)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "docs-diagrams-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	texts := []string{}
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
	out, err := browse(page, "--dump-dom")
	if err != nil {
		return nil, err
	}
	var images []rendered
	found := result.FindSubmatch(out)
	if len(found) == 0 || len(found[1]) == 0 {
		return nil, errors.New("the browser did not render the diagrams in time")
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &images); err != nil {
		return nil, err
	}
	if len(images) != len(diagrams) {
		return nil, fmt.Errorf("the browser rendered %d of %d diagrams", len(images), len(diagrams))
	}
	return images, nil
}

// allDiagrams returns the diagrams of all pages below root.
func allDiagrams(root string) ([]diagram, error) {
	pages, err := readPages(root)
	if err != nil {
		return nil, err
	}
	var all []diagram
	for _, p := range sorted(pages) {
		all = append(all, p.diagrams...)
	}
	return all, nil
}

// diagrams returns an error with every diagram below root that does not render.
func diagrams(root string) error {
	all, err := allDiagrams(root)
	if err != nil || len(all) == 0 {
		return err
	}
	images, err := render(root, all)
	if err != nil {
		return err
	}
	var problems []error
	for i, d := range all {
		if problem := images[i].problem(); problem != "" {
			problems = append(problems, fmt.Errorf("%s:%d: diagram does not render: %s", d.path, d.line, problem))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	fmt.Printf("docs: %d diagrams render\n", len(all))
	return nil
}

// problem returns what is wrong with the image, or "".
func (r rendered) problem() string {
	if r.Error == "" && (!strings.HasPrefix(r.SVG, "<svg") || r.Width <= 0 || r.Height <= 0) {
		return "the image is empty"
	}
	return r.Error
}
