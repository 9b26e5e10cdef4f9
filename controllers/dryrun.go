package controllers

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// writer is the controller that needs right in order to write, or empty.
func writer(right check.Right) config.Controller {
	switch right.Resource + " " + right.Verb {
	case requestsResource + "/approval update", "signers approve":
		return config.ApproverController
	case requestsResource + "/status update", "signers sign", "secrets create":
		return config.SignerController
	case requestsResource + " delete":
		return config.CleanerController
	}
	return ""
}

// dryRun takes away the rights to write that a dry run has no use for, so that one can run without them; a cleaner tells
// by Events then.
func (r *rights) dryRun(c *config.Configuration) {
	r.all = slices.DeleteFunc(r.all, func(right check.Right) bool { return writer(right) != "" && c.DryRuns(writer(right)) })
	if c.Enabled(config.CleanerController) && c.DryRuns(config.CleanerController) {
		r.events("cleaner", metav1.NamespaceDefault)
	}
}
