package reference

import (
	"path/filepath"

	approval "github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// ruleVariables returns the variables of conditions.
func ruleVariables(string) (string, error) {
	rows := newTable("variable", "type", "holds")
	for _, each := range approval.Variables() {
		rows.row(quote(each.Path), quote(each.Type()), prose(each.Doc))
	}
	return rows.String(), nil
}

// ruleLibraries returns the libraries of conditions.
func ruleLibraries(string) (string, error) {
	rows := newTable("library", "functions")
	for _, each := range approval.Libraries() {
		rows.row(each.Name, prose(each.Functions))
	}
	return rows.String(), nil
}

// rulePresets returns the presets, as their comments describe them.
func rulePresets(root string) (string, error) {
	all, err := readConstants(filepath.Join(root, "pkg", "rules"), func(_, kind string) bool { return kind == "Preset" })
	if err != nil {
		return "", err
	}
	rows := newTable("preset", "what it approves")
	for _, each := range all {
		rows.row(quote(each.value), prose(bare(each.comment, each.name)))
	}
	return rows.String(), nil
}
