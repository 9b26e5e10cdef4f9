package kubelet

import (
	"encoding/pem"
	"os"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// pairOf returns a certificate and its key for host.
func pairOf(t *testing.T, host string) (cert, key []byte) {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey(host, nil, nil)
	expect.NoError(t, err)
	block, _ := pem.Decode(cert) // without its CA
	return pem.EncodeToMemory(block), key
}

// kept returns a store as client-go leaves it, with a pair for host old.
func kept(t *testing.T) store {
	t.Helper()
	s := store{t.TempDir(), "kubelet-client"}
	files, err := certificate.NewFileStore(s.prefix, s.dir, s.dir, "", "")
	expect.NoError(t, err)
	_, err = files.Update(pairOf(t, "old"))
	expect.NoError(t, err)
	return s
}

// inUse returns for which host the pair is that a kubelet would read now.
func inUse(t *testing.T, s store) string {
	t.Helper()
	files, err := certificate.NewFileStore(s.prefix, s.dir, s.dir, "", "")
	expect.NoError(t, err)
	pair, err := files.Current()
	expect.NoError(t, err)
	return pair.Leaf.DNSNames[0]
}

// TestReplace checks that a kubelet reads the new pair, and the old one after an undo, and that it can rotate the pair afterwards.
func TestReplace(t *testing.T) {
	s, later := kept(t), time.Hour
	replace := func() {
		cert, key := pairOf(t, "new")
		expect.NoError(t, s.replace(cert, key, time.Now().Add(later)))
		expect.Equal(t, "after replace", inUse(t, s), "new")
		unfinished, err := s.unfinished()
		expect.NoError(t, err)
		expect.Equal(t, "unfinished", unfinished, true)
	}
	replace()
	expect.NoError(t, s.undo())
	expect.Equal(t, "after undo", inUse(t, s), "old")
	later = 2 * time.Hour // a second one in the same second would have its name
	replace()
	expect.NoError(t, s.finish())
	unfinished, err := s.unfinished()
	expect.NoError(t, err)
	expect.Equal(t, "unfinished at the end", unfinished, false)
	files, err := certificate.NewFileStore(s.prefix, s.dir, s.dir, "", "")
	expect.NoError(t, err)
	_, err = files.Update(pairOf(t, "next"))
	expect.NoError(t, err)
	expect.Equal(t, "after a rotation", inUse(t, s), "next")
}

// TestInterrupted checks that a kubelet can start after each step of a replacement, and that it can be done again.
func TestInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(s store, old string){
		"file written": func(s store, _ string) {
			expect.NoError(t, os.WriteFile(s.dir+"/kubelet-client-2026-01-01-00-00-00.pem", nil, 0o600))
		},
		"link to the old begun":    func(s store, old string) { expect.NoError(t, os.Symlink(old, s.before()+".csr-new")) },
		"link to the old":          func(s store, old string) { expect.NoError(t, os.Symlink(old, s.before())) },
		"link to the new begun":    func(s store, old string) { expect.NoError(t, os.Symlink(old, s.current()+".csr-new")) },
		"a kubelet's own rotation": func(s store, old string) { expect.NoError(t, os.Symlink(old, s.dir+"/kubelet-client-updated.pem")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := kept(t)
			old, err := os.Readlink(s.current())
			expect.NoError(t, err)
			interrupt(s, old)
			expect.Equal(t, "the pair in use", inUse(t, s), "old")
			unfinished, err := s.unfinished()
			expect.NoError(t, err)
			expect.Equal(t, "unfinished", unfinished, false)
			cert, key := pairOf(t, "new")
			expect.NoError(t, s.replace(cert, key, time.Now().Add(time.Hour)))
			expect.Equal(t, "the pair in use then", inUse(t, s), "new")
		})
	}
}

// TestServiceOf checks which service a process belongs to, seen from the host and from within a Pod.
func TestServiceOf(t *testing.T) {
	for cgroups, want := range map[string]string{
		"0::/system.slice/kubelet.service\n":                                 "kubelet.service",
		"5:memory:/\n1:name=systemd:/system.slice/kubelet.service/plugins\n": "kubelet.service",
		"0::/runtime.slice/kubelet.service\n":                                "kubelet.service",
		"0::/../../../kube.slice/kubelet.service\n":                          "kubelet.service",
		"0::/../../../../system.slice/kubelet.service\n":                     "kubelet.service",
		"0::/kubepods.slice/pod1.slice/system.slice/kubelet.service\n":       "",
		"0::/../../pod2.slice/cri-1.scope/system.slice/kubelet.service\n":    "",
		"0::/user.slice/system.slice/kubelet.service\n":                      "",
		"0::/user.slice/user-0.slice/kubelet.service\n":                      "",
		"0::/kubepods/pod2/1/system.slice/kubelet.service\n":                 "",
		"": "",
	} {
		expect.Equal(t, cgroups, serviceOf(cgroups), want)
	}
}
