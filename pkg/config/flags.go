package config

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// perSignerFlags lists the signers with flags of their own, by the middle part of kube-controller-manager's
// --cluster-signing-<middle>-{cert,key}-file.
var perSignerFlags = []struct{ middle, signer string }{
	{"kubelet-serving", certificatesv1.KubeletServingSignerName},
	{"kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName},
	{"kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName},
}

// retiredFlags lists kube-controller-manager's flags for kubernetes.io/legacy-unknown. certificates/v1 refuses that
// signer, so no request can name it. The flags are accepted because existing command lines may have them.
var retiredFlags = []string{"cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"}

// These flags are not configuration.
const configFlag, versionFlag, helpFlag = "config", "version", "help"

// Flags holds the command line flags of a Configuration, in groups as --help shows them.
type Flags struct {
	Groups []Group

	fields map[string]string // flag name → field path
}

// Group is a set of flags with a title.
type Group struct {
	Title string
	Flags *pflag.FlagSet
}

// groups holds the titles of the groups, and the parts of the file that they are about. All other flags are in the first.
var groups = []struct{ title, part string }{
	{"Generic", ""}, {"Leader election", "leaderElection"}, {"Audit log", "audit"}, {"Approval", "approval"}, {"Signing", "signing"},
}

// NewFlags returns flags that set c. The values of c are their defaults. Each field with the tag flag has one.
func NewFlags(c *Configuration) *Flags {
	f := &Flags{fields: map[string]string{}}
	for _, group := range groups {
		set := pflag.NewFlagSet(group.title, pflag.ContinueOnError)
		set.SortFlags = false
		f.Groups = append(f.Groups, Group{group.title, set})
	}
	f.define("", configFlag, "file", new(string), "Reads the configuration from this file. Flags override it.")
	all := slices.DeleteFunc(fieldsOf(reflect.ValueOf(c).Elem(), ""), func(one fieldAt) bool { return one.Tag.Get("flag") == "" })
	flags := map[string]string{} // by the name of the field
	for _, each := range all {
		flags[each.path[strings.LastIndex(each.path, ".")+1:]] = "--" + each.Tag.Get("flag")
	}
	for _, each := range all {
		usage := plain(description(comments(), each.owner.Name(), each.Name), flags)
		f.define(each.path, each.Tag.Get("flag"), each.Tag.Get("form"), each.value.Addr().Interface(), usage)
	}
	onlyLeases := func(kind string) error {
		if kind != "leases" {
			return errors.New("want leases")
		}
		return nil
	}
	f.define("leaderElection", "leader-elect-resource-lock", "kind", onlyLeases, "The kind of lock: only leases, the default.")
	for _, one := range perSignerFlags {
		usage := "The CA of " + one.signer + ". Signers without files are then not served."
		setCert := func(file string) error { c.Signing.signer(one.signer).CertFile = file; return nil }
		setKey := func(file string) error { c.Signing.signer(one.signer).KeyFile = file; return nil }
		flag, field := "cluster-signing-"+one.middle, fmt.Sprintf("signing.signers[%s]", one.signer)
		f.define(field+".certFile", flag+"-cert-file", "file", setCert, usage)
		f.define(field+".keyFile", flag+"-key-file", "file", setKey, usage)
	}
	for _, name := range retiredFlags {
		note := func(string) error { c.Retired = append(c.Retired, "--"+name); return nil }
		f.define("signing", name, "file", note, "No effect: since Kubernetes 1.22 no request can name kubernetes.io/legacy-unknown.")
	}
	f.define("", versionFlag, "", new(bool), "Prints the version and exits.")
	f.Groups[0].Flags.BoolP(helpFlag, "h", false, "Prints this help and exits.")
	return f
}

// define adds a flag. It sets target, whose value is the default. path is the field that it belongs to, or a part of the
// file that has no such field. form stands for the value in the help.
func (f *Flags) define(path, name, form string, target any, usage string) {
	part, _, isField := strings.Cut(path, ".")
	i := max(0, slices.IndexFunc(groups, func(group struct{ title, part string }) bool { return group.part == part }))
	addFlag(f.Groups[i].Flags, name, form, target, usage)
	f.fields[name] = path
	if i > 0 && !isField {
		f.fields[name] = ""
	}
}

// addFlag adds the flag of define to set.
func addFlag(set *pflag.FlagSet, name, form string, target any, usage string) {
	short := ""
	if len(name) == 1 {
		short = name
	}
	switch target := target.(type) {
	case *string:
		set.StringVarP(target, name, short, *target, usage)
	case *int:
		set.IntVarP(target, name, short, *target, usage)
	case *float64:
		set.Float64VarP(target, name, short, *target, usage)
	case *bool:
		set.BoolVarP(target, name, short, *target, usage)
	case *metav1.Duration:
		set.DurationVarP(&target.Duration, name, short, target.Duration, usage)
	case *[]string:
		set.VarP(&list{target: target}, name, short, usage)
	case func(string) error:
		set.FuncP(name, short, usage, target)
	}
	if form != "" {
		flag := set.Lookup(name)
		flag.Value = formed{flag.Value, form}
	}
}

// Field returns the path of the field that the flag called name sets, or "" if the flag is no configuration.
func (f *Flags) Field(name string) string { return f.fields[name] }

// formed is a value whose type the help shows as form.
type formed struct {
	pflag.Value
	form string
}

func (f formed) Type() string { return f.form }

// list sets target from a comma-separated list. The flag overrides the file. If the flag is given twice, both lists
// count, as in kube-controller-manager.
type list struct {
	target *[]string
	given  bool
}

func (l *list) Set(text string) error {
	if !l.given {
		*l.target, l.given = nil, true
	}
	*l.target = append(*l.target, strings.Split(text, ",")...)
	return nil
}

func (l *list) String() string { return strings.Join(*l.target, ",") }

func (*list) Type() string { return "list" }

// signer returns the settings of the signer with that name. It adds them if there are none.
func (s *Signing) signer(name string) *Signer {
	for i := range s.Signers {
		if s.Signers[i].Name == name {
			return &s.Signers[i]
		}
	}
	s.Signers = append(s.Signers, Signer{Name: name})
	return &s.Signers[len(s.Signers)-1]
}

// together returns the flags of all groups.
func (f *Flags) together() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Usage = func() {}
	for _, group := range f.Groups {
		set.AddFlagSet(group.Flags)
	}
	return set
}

// source is the code of the fields, whose comments describe them and their flags.
//
//go:embed config.go approval.go signing.go
var source embed.FS

// comments returns the comments in source.
var comments = sync.OnceValue(func() map[string]string { return readComments(source) })

// readComments returns the comments of the structs in formatted Go files, and of their fields, by "Type" and "Type.Field".
func readComments(files fs.FS) map[string]string {
	found := map[string]string{}
	names, _ := fs.Glob(files, "*.go") // the pattern is valid
	for _, name := range names {
		code, _ := fs.ReadFile(files, name)
		owner, comment := "", ""
		for line := range strings.Lines(string(code)) {
			words := strings.Fields(line)
			switch {
			case len(words) > 0 && words[0] == "//":
				comment += strings.Join(words[1:], " ") + " "
				continue
			case len(words) > 2 && words[0] == "type" && strings.HasPrefix(words[2], "struct"):
				owner = words[1]
				found[owner] = comment
			case len(words) > 1 && owner != "":
				found[owner+"."+words[0]] = comment
			case strings.HasPrefix(line, "}"):
				owner = ""
			}
			comment = ""
		}
	}
	return found
}

// description returns the comment of a field for a place where its name stands already.
func description(comments map[string]string, owner, field string) string {
	return withoutName(comments[owner+"."+field], field)
}

// withoutName returns a comment without the name at its beginning, and without the verb is.
func withoutName(comment, name string) string {
	text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(comment), name+" "), "is ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// marked matches code and links of Markdown.
var marked = regexp.MustCompile("`([^`]*)`|\\[([^]]*)\\]\\([^)]*\\)")

// plain returns text without the marks of Markdown, and with the flags of the fields that it names.
func plain(text string, flags map[string]string) string {
	return marked.ReplaceAllStringFunc(text, func(mark string) string {
		found := marked.FindStringSubmatch(mark)
		return cmp.Or(flags[found[1]], found[1], found[2])
	})
}
