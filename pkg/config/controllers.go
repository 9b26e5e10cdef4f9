package config

import (
	"slices"
	"strings"
)

// Controller is one of the controllers that can be switched on and off.
type Controller string

// The controllers.
const (
	ApproverController Controller = "approver"
	SignerController   Controller = "signer"
	CleanerController  Controller = "cleaner"
	RotationController Controller = "rotation"
)

// controllerNames are all names of the controllers: ours, and kube-controller-manager's with their aliases
// (cmd/kube-controller-manager/names/controller_names.go).
var controllerNames = map[string]Controller{
	"approver":     ApproverController,
	"csrapproving": ApproverController,
	"certificatesigningrequest-approving-controller": ApproverController,
	"signer":     SignerController,
	"csrsigning": SignerController,
	"certificatesigningrequest-signing-controller": SignerController,
	"cleaner":    CleanerController,
	"csrcleaner": CleanerController,
	"certificatesigningrequest-cleaner-controller": CleanerController,
	"rotation": RotationController,
}

// DryRuns says whether a controller is only to say what it would do.
func (c *Configuration) DryRuns(controller Controller) bool {
	return slices.ContainsFunc(c.DryRun, func(entry string) bool { return entry == "*" || controllerNames[entry] == controller })
}

// Enabled says whether a controller is to run. As in kube-controller-manager the first entry that names it decides,
// and only then the * (k8s.io/controller-manager/app, IsControllerEnabled). Rotation must be on as well, and has no dry run.
func (c *Configuration) Enabled(controller Controller) bool {
	if controller == RotationController && (!c.Rotation.Enabled || c.DryRuns(controller)) {
		return false
	}
	star := false
	for _, entry := range c.Controllers {
		name, off := strings.CutPrefix(entry, "-")
		switch {
		case entry == "*":
			star = true
		case controllerNames[name] == controller:
			return !off
		}
	}
	return star
}
