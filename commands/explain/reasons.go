package explain

// nothing is the next step after a success.
const nothing = "Nothing."

// advice is the row of docs/reference/reasons.md about a reason: its meaning and the next step.
type advice struct{ meaning, todo string }

// approverReasons holds the reasons of the approver. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var approverReasons = map[string]advice{
	"AutoApproved": {
		meaning: "The rules approved the request.",
		todo:    nothing,
	},
	"ApprovedByHand": {
		meaning: "An administrator approved the request with `kubectl csr approve`; the condition names the user.",
		todo:    nothing,
	},
	"NotAuthorized": {
		meaning: "The requester lacks the permission that the Event names, may not bootstrap this node, or is " +
			"gone.",
		todo: "If the requester should join nodes, bind " +
			"`system:certificates.k8s.io:certificatesigningrequests:nodeclient` to its narrowest group, such as " +
			"`system:bootstrappers:kubeadm:default-node-token`; if nodes should renew, bind " +
			"`system:certificates.k8s.io:certificatesigningrequests:selfnodeclient` to `system:nodes`; a " +
			"bootstrap token needs `usage-bootstrap-signing` and must be for this node. Otherwise find out who " +
			"holds the credential.",
	},
	"ShapeMismatch": {
		meaning: "The content is not what the signer may sign; the Event names the first difference.",
		todo:    "Correct the client.",
	},
	"RequesterNotNode": {
		meaning: "The requester of a serving certificate is not `system:node:NAME`.",
		todo: "For a webhook or a Service, use another signer. For a node, correct the mapping of its cloud " +
			"identity.",
	},
	"CommonNameMismatch": {
		meaning: "A node asks for another node's certificate: the common name is not its user name.",
		todo:    "Correct the client, or find out who holds the kubelet's credential.",
	},
	"UsagesNotPermitted": {
		meaning: "The usages are not those of a serving certificate.",
		todo:    "Request digital signature and server auth, with or without key encipherment.",
	},
	"SANTypeNotPermitted": {
		meaning: "The request contains e-mail addresses or URIs.",
		todo:    "Make a request without them.",
	},
	"UnexpectedContent": {
		meaning: "No kubelet asks for this attribute, extension or type of name.",
		todo:    "Find out which program made the request.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is neither a host name nor a canonical IP address: other programs may read it as " +
			"several names.",
		todo: "Correct the client, or find out who holds the kubelet's credential.",
	},
	"SANMissing": {
		meaning: "The request has no name and no address: the kubelet knows none of its node.",
		todo:    "Set `--node-ip` for the kubelet, or wait until the cloud provider has set the Node's addresses.",
	},
	"SANReserved": {
		meaning: "A name or an address belongs to a Service, to every host, or to an API server.",
		todo: "Change the Service that uses a value of the node; if an API server runs on the node, add it to " +
			"`apiServerNodes`. Otherwise find out why the node claims it.",
	},
	"NodeNotFound": {
		meaning: "No source of the inventory knows the node yet.",
		todo:    "If the node is new, wait. Otherwise find out why its Node or Machine is missing.",
	},
	"AddressNotPublished": {
		meaning: "The source knows no address of the node yet. Or a CIDR, a suffix or a pattern gives the value to " +
			"several nodes, and this Node does not report it.",
		todo: "Wait until the kubelet or a cloud provider has set the addresses. If the Node never reports the " +
			"value, add a static row for it.",
	},
	"SANNotOwned": {
		meaning: "A name or an address does not belong to the node: the Event shows both lists. Or its machine has " +
			"become another node.",
		todo: "If it belongs to the node, add it to the source: the Machine, the static list, or `--node-ip`. " +
			"Otherwise find out why the node claims it.",
	},
	"SANContested": {
		meaning: "A stronger source gives the value to another machine or row, or another Node reports it or has " +
			"it as its name.",
		todo: "Delete the Node or Machine that is gone, or put a Node that lies on the block list. If nodes " +
			"share the address, add static rows; if the Machine belongs to this node, find out why its " +
			"`status.nodeRef` does not say so.",
	},
	"InventoryUnavailable": {
		meaning: "A source of the inventory, the block list, or another needed object cannot be read, or two " +
			"machines would become the same node.",
		todo: "Do what the Event names: repair the source or list, grant the right, or rename or delete one of " +
			"the machines.",
	},
	"InventoryPending": {
		meaning: "A source is not read yet, or a source over the network is busy with other requests.",
		todo:    "Wait: the manager asks again. If many requests wait, find out why the source is slow.",
	},
	"NotExpected": {
		meaning: "No source expects the node of this first certificate, or its machine is being deleted.",
		todo: "If the Machine is being created, wait. Otherwise add the node to the inventory, or find out who " +
			"holds the bootstrap credential.",
	},
	"NodeAlive": {
		meaning: "A Node or a Lease of that name exists, and is not known to be dead.",
		todo: "If the machine is gone, delete the Node; with `rejoin`, wait until its Lease is unchanged for " +
			"one minute. Otherwise find out who asks for a working node.",
	},
	"MachineBound": {
		meaning: "The machine has already become a node: another one, or this one, which is dead or gone.",
		todo: "To let it join again, set `approval.nodeClient.rejoin`, or delete the dead Node and create the " +
			"machine again.",
	},
	"OutsideJoinWindow": {
		meaning: "The machine was created too long ago, not yet, or at an unknown time.",
		todo:    "If new machines start slowly, raise `joinWindow`. Otherwise create the machine again.",
	},
	"RequestTooOld": {
		meaning: "The request for a first certificate is older than `maxRequestAge`.",
		todo:    "Wait for the kubelet's next request. If there is none, find out whether the kubelet runs.",
	},
	"RateLimited": {
		meaning: "The requester has used up its approvals for this node and signer (`approval.limit`). The newest " +
			"request is next.",
		todo: "Find out whether the kubelet cannot keep its certificate, or somebody else has its credential. " +
			"If the number is right, raise `burst` or `perHour`.",
	},
	"NodeBlocked": {
		meaning: "The node that the request is for, or comes from, is on the block list.",
		todo:    "Nothing, or remove its name from the list.",
	},
	"CertificateBlocked": {
		meaning: "The request was made with a client certificate that is on the block list.",
		todo:    "Nothing, or remove its SHA-256 from the list.",
	},
	"RequestTooLarge": {
		meaning: "The request exceeds the limit of `requestLimits` that the Event names, or does not fit into an " +
			"object with its certificate.",
		todo: "If it is legitimate, raise the limit. If it does not fit, make one with fewer names, labels and " +
			"annotations.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA of at most 8,192 bits with a usual exponent, nor ECDSA P-256, P-384 or " +
			"P-521, nor Ed25519.",
		todo: "Make a new request with a permitted key.",
	},
	"NotStored": {
		meaning: "The API server refuses to store the condition or the certificate (status 400, 403, 413 or 422).",
		todo:    "Correct the role, the admission policy or the webhook that the Event names.",
	},
	"Malformed": {
		meaning: "The request cannot be parsed, or its signature does not match its key. If the API server accepts " +
			"no update of it, only the Event and `explain` report it.",
		todo: "Delete the request.",
	},
	"InternalError": {
		meaning: "A defect in csr-controller-manager: it could not parse the request.",
		todo:    "Report the defect, with `kubectl get csr NAME -o yaml`.",
	},
}

// signerReasons holds the reasons of the signer. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var signerReasons = map[string]advice{
	"SignerValidationFailure": {
		meaning: "The request breaks a rule of a signer of Kubernetes. The message is kube-controller-manager's.",
		todo:    "Correct the usages, the subject or the names: Kubernetes documents the rules.",
	},
	"UsagesNotPermitted": {
		meaning: "A usage is unknown, the custom signer does not permit it, or there is no extended key usage.",
		todo: "Request other usages, or extend `signing.signers[].usages`. Set `allowNoExtKeyUsage` only for a " +
			"CA that the cluster does not trust.",
	},
	"RequestTooLarge": {
		meaning: "The request exceeds the limit of `requestLimits` that the Event names, or does not fit into an " +
			"object with its certificate.",
		todo: "If it is legitimate, raise the limit. If it does not fit, make one with fewer names, labels and " +
			"annotations.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA of at most 8,192 bits with a usual exponent, nor ECDSA P-256, P-384 or " +
			"P-521, nor Ed25519.",
		todo: "Make a new request with a permitted key.",
	},
	"KeyTooWeak": {
		meaning: "The RSA key has fewer bits than `signing.minRSABits`.",
		todo:    "Make a new request with an ECDSA P-256 key, or a longer RSA key.",
	},
	"SubjectNotPermitted": {
		meaning: "The signer never issues this subject, such as `O=system:masters`. Or API servers would accept " +
			"the client as a front proxy, which acts for any user.",
		todo: "Request another subject, or give the custom signer a CA of its own. Change `forbiddenSubjects` " +
			"only if you know the consequences.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is not valid (labels of letters, digits, `-` and `_`, at most 253 bytes), an IP " +
			"address is not canonical, or a wildcard is not permitted. Or the cluster trusts the custom signer's " +
			"CA, and the name is not in `allowedNames`.",
		todo: "Request other names, set `allowWildcards`, extend `allowedNames`, or give the signer a CA that " +
			"the cluster does not trust.",
	},
	"Malformed": {
		meaning: "The request cannot be parsed, or its signature does not match its key. If the API server accepts " +
			"no update of it, only the Event and `explain` report it.",
		todo: "Delete the request.",
	},
	"RequestTooOld": {
		meaning: "The approved request is due for deletion.",
		todo:    "Make a new request.",
	},
	"NotStored": {
		meaning: "The API server refuses to store the condition or the certificate (status 400, 403, 413 or 422).",
		todo:    "Correct the role, the admission policy or the webhook that the Event names.",
	},
	"CertificateMismatch": {
		meaning: "The finished certificate differed from the request, or held more than permitted. It was " +
			"discarded.",
		todo: "Report the defect, with the request. Make a new request with other names.",
	},
	"InternalError": {
		meaning: "A defect in csr-controller-manager: it could not parse the request.",
		todo:    "Report the defect, with `kubectl get csr NAME -o yaml`.",
	},
	"NodeBlocked": {
		meaning: "The node that the request is for, or comes from, is on the block list.",
		todo:    "Nothing, or remove its name from the list.",
	},
	"CertificateBlocked": {
		meaning: "The request was made with a client certificate that is on the block list.",
		todo:    "Nothing, or remove its SHA-256 from the list.",
	},
	"InventoryUnavailable": {
		meaning: "A source of the inventory, the block list, or another needed object cannot be read, or two " +
			"machines would become the same node.",
		todo: "Do what the Event names: repair the source or list, grant the right, or rename or delete one of " +
			"the machines.",
	},
	"CAMissing": {
		meaning: "The Secret or the files of the CA do not exist or cannot be read.",
		todo: "Create the Secret or the files, or grant `list` and `watch` on the Secret if the message says " +
			"\"forbidden\".",
	},
	"CAInvalid": {
		meaning: "The content cannot be used: not PEM, another key, not a CA, not yet valid, or an encrypted key. " +
			"A good CA that was loaded before stays in use.",
		todo: "Correct the Secret or the files as the message says.",
	},
	"CAExpired": {
		meaning: "The signing certificate, or a certificate of its chain, has expired; the message names it.",
		todo:    "Replace the CA, and add the new CA to the trust bundles of the verifiers.",
	},
	"ClockSkewed": {
		meaning: "The clocks of the manager and of the API server differ by more than five minutes, or the API " +
			"server's time is unknown. If it is known, approval and cleaning continue.",
		todo: "Synchronize the clock of the manager's node, or of the API server.",
	},
	"CANotProven": {
		meaning: "With `rotation.enabled`: the CA is not proven to be trusted yet, or not for this signer.",
		todo: "Run `kubectl csr rotation status`. If the Secret has no SigningAuthority, create one that names " +
			"the signer.",
	},
	"CATrustUnknown": {
		meaning: "It cannot be read which CAs the cluster trusts. If it trusts this one, the request must be " +
			"refused for the reason in the message.",
		todo: "Grant the rights in `config/rbac/ca_trust.yaml`, or do what the message says. If the names are " +
			"known, list them in `allowedNames`.",
	},
	"LedgerUnavailable": {
		meaning: "The rotation's ledger (ConfigMap NAME-ledger beside the Secret NAME) cannot be read or written, " +
			"lacks this CA, or is closed because a rotation is completing.",
		todo: "Grant `get` and `update` on it, or repair it. If it lacks this CA, check that the rotation " +
			"controller runs; if it is closed, that the signer may watch the Secret.",
	},
	"LifetimeCut": {
		meaning: "A certificate ends earlier than requested, because the CA ends.",
		todo:    "Replace the CA soon.",
	},
	"SecondSigner": {
		meaning: "Another program stored a certificate of another CA, just before this manager signed. The Event " +
			"names the issuer.",
		todo: "Disable one of the two signers: `kube-controller-manager` " +
			"([migrate-from-kcm.md](../how-to/migrate-from-kcm.md)), or the other installation.",
	},
	"CALoaded": {
		meaning: "The signer uses this CA.",
		todo:    nothing,
	},
}
