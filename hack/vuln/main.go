// Command vuln reaches a known vulnerability, GO-2021-0113, so that hack/vuln.sh can check that the search finds it. Nothing runs it.
package main

import "golang.org/x/text/language"

func main() {
	_, _, _ = language.ParseAcceptLanguage("en")
}
