package authorization

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func TestSize(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	users := ""
	for i := range 3000 {
		users += fmt.Sprintf("user-%d%060d\n", i, i)
	}
	blocked, problems, err := entries.Parse(map[string]string{"nodes": "a\nb", "users": users + `"a\" || true || \"\n\\ü"`})
	expect.Error(t, "", err, "")
	expect.Equal(t, "", len(problems), 0)
	data, err := Join([]byte(Default), blocked, "writer", kubeconfig)
	expect.Error(t, "", err, "")
	expect.Error(t, "", Check(t.Context(), data, blocked, "writer"), "")
	read, err := load.LoadFromData(data)
	expect.Error(t, "", err, "")
	t.Log(len(read.Authorizers), len(data))
	for _, a := range read.Authorizers[:1] {
		m, errs := validation.ValidateAndCompileMatchConditions(cel.NewDefaultCompiler(), a.Webhook.MatchConditions)
		t.Log(errs)
		r := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				ok, err := m.Eval(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "x", Extra: map[string]authorizationv1.ExtraValue{csr.NodeNameKey: {"n"}}}})
				if ok || err != nil {
					t.Fatal(ok, err)
				}
			}
		})
		t.Log(r)
	}
}
