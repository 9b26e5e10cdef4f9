package explain

// nothing is the next step after a success.
const nothing = "Nothing."

// advice is the row of docs/reference/reasons.md about a reason: its meaning and the next step.
type advice struct{ meaning, todo string }

// approverReasons holds the reasons of the approver. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var approverReasons = map[string]advice{
	"AutoApproved": {
		meaning: "The rules approved the request. This is the reason of the Approved condition.",
		todo:    nothing,
	},
	"ApprovedByHand": {
		meaning: "An administrator approved the request with `kubectl csr approve`. The message of the Approved " +
			"condition names the user.",
		todo: nothing,
	},
	"NotAuthorized": {
		meaning: "The requester lacks the permission that the Event names, may not bootstrap this node, or " +
			"does not exist any more. The manager checks the request again after one second, then after twice as " +
			"long each time, up to five minutes.",
		todo: "If the requester should join nodes, bind " +
			"`system:certificates.k8s.io:certificatesigningrequests:nodeclient` to its narrowest group, such as " +
			"`system:bootstrappers:kubeadm:default-node-token`; if nodes should renew, bind " +
			"`system:certificates.k8s.io:certificatesigningrequests:selfnodeclient` to `system:nodes`; a bootstrap token " +
			"also needs `usage-bootstrap-signing` and must be for this node. Otherwise find out who holds that credential.",
	},
	"ShapeMismatch": {
		meaning: "The content of the request is not what its signer may sign. The Event names the first " +
			"difference.",
		todo: "Correct the client and make a new request, because the content of a request cannot change.",
	},
	"RequesterNotNode": {
		meaning: "The requester of a serving certificate is not a kubelet. It is a ServiceAccount, a person, " +
			"or a cloud identity that is not mapped to `system:node:NAME`.",
		todo: "For a webhook or a Service, use another signer. For a node, correct how its credential is " +
			"mapped to a user.",
	},
	"CommonNameMismatch": {
		meaning: "The common name differs from the user name of the requester: a node asks for the " +
			"certificate of another node.",
		todo: "Correct the client. If the client is a kubelet, find out who holds its credential.",
	},
	"UsagesNotPermitted": {
		meaning: "The usages are not those of a serving certificate.",
		todo: "Make a new request with the usages digital signature and server auth, with or without key " +
			"encipherment.",
	},
	"SANTypeNotPermitted": {
		meaning: "The request contains e-mail addresses or URIs, which a serving certificate may not have.",
		todo:    "Make a new request without e-mail addresses and URIs.",
	},
	"UnexpectedContent": {
		meaning: "The request contains something that no kubelet asks for: another subject attribute, an " +
			"extension, or another type of name.",
		todo: "Find out which program made the request, because it is not a kubelet.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is neither a host name nor an IP address in its canonical form. Other programs " +
			"may read such a name as several names.",
		todo: "Correct the client. If the client is a kubelet, find out who holds its credential.",
	},
	"SANMissing": {
		meaning: "The request contains neither a DNS name nor an IP address. A kubelet that knows no address " +
			"of its node makes such a request.",
		todo: "Set `--node-ip` for the kubelet, or wait until the cloud provider has set the addresses of the Node.",
	},
	"SANReserved": {
		meaning: "A name or an address in the request cannot belong to a node. It belongs to a Service, to " +
			"every host, or to the API server, according to its serving certificate, its endpoints or the " +
			"kubeconfig.",
		todo: "If a Service uses a name or an address of the node, change the Service; if an API server runs " +
			"on the node, add the node to `apiServerNodes`. Otherwise find out why the node claims the name.",
	},
	"NodeNotFound": {
		meaning: "No source of the inventory knows the node yet.",
		todo:    "Wait if the node has just been created. Otherwise find out why its Node or Machine is missing.",
	},
	"AddressNotPublished": {
		meaning: "The source knows the node, but no address of it yet. Or a CIDR, a suffix or a pattern gives " +
			"the address to several nodes, and the Node does not report it.",
		todo: "Wait until the kubelet or a cloud provider has set the addresses. If the Node never reports " +
			"the address, add a row of its own for it to a static list.",
	},
	"SANNotOwned": {
		meaning: "A name or an address in the request does not belong to the node; the Event shows both " +
			"lists. Or the machine with that name has become another node.",
		todo: "If the name belongs to the node, add it to the source: the Machine, the static list, or " +
			"`--node-ip`. Otherwise find out why the node claims it.",
	},
	"SANContested": {
		meaning: "A stronger source assigns the name or the address to another machine or row, or another Node reports it or " +
			"has it as its name. Then it belongs to none of these Nodes.",
		todo: "Find out which Node is right, and delete the Node or Machine that is gone, or put a Node that lies on the block " +
			"list: the other request is then approved at once. If nodes share the address, add a row for them to a static list; " +
			"if the Machine belongs to this node, find out why its `status.nodeRef` does not say so.",
	},
	"InventoryUnavailable": {
		meaning: "A source of the inventory, the block list, or another object that the rule reads cannot be " +
			"read, or two machines would become the same node. A weaker source never replaces a stronger one.",
		todo: "Do what the Event names: repair the source, grant the missing right, or rename or delete one " +
			"of the machines. The manager checks the request again at once, or within five minutes if nothing shows " +
			"the change.",
	},
	"InventoryPending": {
		meaning: "A source of the inventory is not read yet, or a source over the network, such as a webhook, " +
			"is busy with other requests. Renewals, and requests for nodes that stronger sources know, do not wait for it.",
		todo: "Wait: the manager checks the request again after a second or two, and less often as it gets older, at least every 30 seconds. If many requests " +
			"wait, find out why the source is slow.",
	},
	"NotExpected": {
		meaning: "The request is for the first certificate of a node that no source expects, or the machine " +
			"of the node is being deleted.",
		todo: "Wait if the Machine is being created. Otherwise add the node to the inventory, or find out who " +
			"holds the bootstrap credential.",
	},
	"NodeAlive": {
		meaning: "A Node or a Lease with that name exists, and the node is alive or not known to be dead.",
		todo: "If the machine is gone, delete the Node; with `rejoin`, the node may join again after its " +
			"Lease has not changed for one minute. Otherwise find out who asks for the name of a working node.",
	},
	"MachineBound": {
		meaning: "The machine has already become a node: another one, or this one, which is dead or gone.",
		todo: "If the machine should join again, set `approval.nodeClient.rejoin`, or delete the dead Node " +
			"and create the machine again.",
	},
	"OutsideJoinWindow": {
		meaning: "The machine was created too long ago or not yet, or its creation time is not known.",
		todo: "If new machines start slowly, raise `joinWindow`. If the machine has waited too long, create " +
			"it again.",
	},
	"RequestTooOld": {
		meaning: "The request for a first certificate is older than `maxRequestAge`. Its kubelet does not " +
			"wait for it any more.",
		todo: "Wait for the next request of the kubelet. If there is none, find out whether the kubelet runs.",
	},
	"RateLimited": {
		meaning: "Too many requests of this requester for this node and signer were approved in a short time " +
			"(`approval.limit`). The manager approves the newest request when the next approval is due.",
		todo: "Find out why there are so many requests: the kubelet cannot keep its certificate, or somebody " +
			"else has its credential. If the number is right, raise `burst` or `perHour`.",
	},
	"NodeBlocked": {
		meaning: "The node that the request is for, or comes from, is on the block list.",
		todo: "If the node should stay blocked, do nothing. Otherwise remove its name from the block list: " +
			"the manager checks the request again within a second.",
	},
	"CertificateBlocked": {
		meaning: "The request was made with a client certificate that is on the block list.",
		todo: "If the certificate should stay blocked, do nothing. Otherwise remove its SHA-256 from the block list: " +
			"the manager checks the request again within a second.",
	},
	"RequestTooLarge": {
		meaning: "The request exceeds a limit of `requestLimits`: its bytes, its subject attributes, its " +
			"names, or its attributes and extensions. The Event names the limit, and nothing else of the request " +
			"was read.",
		todo: "Find out which program made the request: the request of a kubelet is ten times smaller. If the " +
			"request is legitimate, raise the limit that the Event names.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA with at most 8,192 bits, nor ECDSA P-256, P-384 or P-521, nor " +
			"Ed25519, or its RSA exponent is unusual. The manager did not compute with the key.",
		todo: "Make a new request with a permitted key.",
	},
	"NotStored": {
		meaning: "The API server refuses to store the decision about the request (status 403 or 422). The Event has its answer.",
		todo:    "Correct the role or the admission policy that the Event names. The manager tries again within five minutes.",
	},
	"Malformed": {
		meaning: "The request contains no PKCS#10 request that can be parsed. The API server refuses such " +
			"requests, so it was stored by other means.",
		todo: "Delete the request.",
	},
	"InternalError": {
		meaning: "The manager could not parse the request because of a defect in csr-controller-manager. It " +
			"tries again within five minutes, and handles all other requests.",
		todo: "Report the defect, with the request (`kubectl get csr NAME -o yaml`).",
	},
}

// signerReasons holds the reasons of the signer. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var signerReasons = map[string]advice{
	"SignerValidationFailure": {
		meaning: "The request breaks a rule of one of Kubernetes' signers. The message is the one of " +
			"kube-controller-manager.",
		todo: "Correct the usages, the subject or the names, and make a new request. The Kubernetes " +
			"documentation has a table of the signers and their rules.",
	},
	"UsagesNotPermitted": {
		meaning: "A usage is unknown, or the configuration of a custom signer does not permit it. Or the " +
			"request to a custom signer has no extended key usage, so the certificate would be valid for every " +
			"purpose.",
		todo: "Make a new request with other usages, or extend `signing.signers[].usages`. Set " +
			"`allowNoExtKeyUsage` only for a CA that API servers do not trust for clients.",
	},
	"RequestTooLarge": {
		meaning: "The request exceeds a limit of `requestLimits`, which the Event names, and nothing else of " +
			"it was read. Or the request does not fit into an object with its certificate, of which etcd stores " +
			"1.5 MiB.",
		todo: "If the request is legitimate, raise the limit that the Event names; the request of a kubelet " +
			"is ten times smaller. If the request does not fit into an object, make a new one with fewer names, " +
			"labels and annotations.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA with at most 8,192 bits, nor ECDSA P-256, P-384 or P-521, nor " +
			"Ed25519, or its RSA exponent is unusual. The manager did not compute with the key.",
		todo: "Make a new request with a permitted key.",
	},
	"KeyTooWeak": {
		meaning: "The RSA key has fewer bits than `signing.minRSABits`.",
		todo:    "Make a new request with an ECDSA P-256 key, or with a longer RSA key.",
	},
	"SubjectNotPermitted": {
		meaning: "This signer never issues this subject, such as `O=system:masters`. Or API servers would " +
			"accept the client as a front proxy, which acts for any user.",
		todo: "Make a new request with another subject, or give the custom signer a CA of its own. Change " +
			"`signing.signers[].forbiddenSubjects` only if you know the consequences.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is not valid (labels of letters, digits, `-` and `_`, at most 253 bytes), an IP " +
			"address is not in its canonical form, or a custom signer does not permit the wildcard. Or API " +
			"servers trust the CA of the custom signer for clients, and the name of a server is not in its " +
			"`allowedNames`.",
		todo: "Make a new request with other names, set `signing.signers[].allowWildcards`, or extend " +
			"`signing.signers[].allowedNames`. You can also give the signer a CA that API servers do not trust " +
			"for clients.",
	},
	"Malformed": {
		meaning: "The request contains no PKCS#10 request that can be parsed, its signature does not match " +
			"its key, or the API server does not accept an approval or a certificate for it. The API server " +
			"cannot mark such a request as failed and `kubectl describe` may not show it, so only the Event and " +
			"`explain` report it.",
		todo: "Delete the request.",
	},
	"RequestTooOld": {
		meaning: "The approved request is due for deletion. The signer never signs old approvals, because the " +
			"requester does not wait for them any more.",
		todo: "Make a new request.",
	},
	"NotStored": {
		meaning: "The API server refuses to store the certificate or the Failed condition (status 403 or 422). The Event has " +
			"its answer.",
		todo: "Correct the role, the admission policy or the webhook that the Event names. The signer tries again within five " +
			"minutes.",
	},
	"CertificateMismatch": {
		meaning: "The finished certificate differs from the certificate that was checked, or contains more " +
			"than its signer may issue, so the signer discarded it. The signer tries again within five minutes.",
		todo: "Report this as a defect, with the request: it must never happen. To get a certificate, make a " +
			"new request with other names.",
	},
	"InternalError": {
		meaning: "The manager could not parse the request because of a defect in csr-controller-manager. It " +
			"tries again within five minutes, and handles all other requests.",
		todo: "Report the defect, with the request (`kubectl get csr NAME -o yaml`).",
	},
	"NodeBlocked": {
		meaning: "The node that the request is for, or comes from, is on the block list. The signer does not " +
			"sign for it, whoever approved the request.",
		todo: "If the node should stay blocked, do nothing. Otherwise remove its name from the block list: " +
			"the signer signs the request within a second.",
	},
	"CertificateBlocked": {
		meaning: "The request was made with a client certificate that is on the block list. The signer does not " +
			"sign it, whoever approved the request.",
		todo: "If the certificate should stay blocked, do nothing. Otherwise remove its SHA-256 from the block list: " +
			"the signer signs the request within a second.",
	},
	"InventoryUnavailable": {
		meaning: "A block list is configured, and the manager has not read it since its start. So it is " +
			"unknown whether the node of the request, or the certificate with which it was made, is blocked.",
		todo: "Create the ConfigMap with the key `nodes`, or grant `get`, `list` and `watch` on it, as the " +
			"Event says.",
	},
	"CAMissing": {
		meaning: "The Secret or the files of the CA do not exist or cannot be read.",
		todo: "Create the Secret or the files, or grant `get`, `list` and `watch` on the Secret if the message says " +
			"\"forbidden\". The signer then signs all waiting requests at once.",
	},
	"CAInvalid": {
		meaning: "The Secret or the files of the CA exist but cannot be used: not PEM, a key that does not " +
			"match the certificate, not a CA, not yet valid, or an encrypted key. A valid CA that was loaded " +
			"before stays in use.",
		todo: "Correct the Secret or the files as the message says. The signer reads them again at once.",
	},
	"CAExpired": {
		meaning: "The signing certificate, or a certificate of its chain, has expired. The message names it.",
		todo:    "Replace the CA, and add the new CA to the trust bundles of the verifiers.",
	},
	"ClockSkewed": {
		meaning: "The clocks of the manager and of the API server differ by more than five minutes, or the " +
			"time of the API server is not known. The signer stops, because certificates would have wrong " +
			"validity; approval and cleaning continue by the time of the API server, if it is known.",
		todo: "Synchronize the clock of the manager's node, or of the API server. The signer signs the " +
			"waiting requests within ten seconds.",
	},
	"CANotProven": {
		meaning: "With `rotation.enabled`: the Secret has no CA yet that is verified to be trusted, or the CA " +
			"is not verified for this signer.",
		todo: "Run `kubectl csr rotation status` to see what the rotation waits for. If no " +
			"SigningAuthority exists for the Secret, create one that names the signer.",
	},
	"CATrustUnknown": {
		meaning: "The ConfigMaps with the CAs that the cluster trusts cannot be read. If the cluster trusts this CA, the " +
			"signer must refuse the request for the reason in the message.",
		todo: "Grant the rights in `config/rbac/ca_trust.yaml`, or do what the message says. If the names " +
			"are known, list them in `signing.signers[].allowedNames`.",
	},
	"LedgerUnavailable": {
		meaning: "With `rotation.enabled`: the ledger of the CA (ConfigMap NAME-ledger beside the Secret " +
			"NAME) cannot be read or written, has no entry for this CA, or is closed because a rotation is " +
			"completing. The signer signs only what the ledger records.",
		todo: "Grant `get` and `update` on the ConfigMap, or repair it if it cannot be read, because it is " +
			"never overwritten. If its entry is missing, check that the rotation controller runs, which creates " +
			"it again and then counts all earlier certificates as outstanding; if it is closed, check that the " +
			"signer may watch the Secret.",
	},
	"LifetimeCut": {
		meaning: "A certificate was issued with a shorter lifetime than requested, because the CA ends before.",
		todo:    "Replace the CA soon: all certificates that it issues end when it ends.",
	},
	"SecondSigner": {
		meaning: "Another program has stored a certificate of another CA for a request that this manager was about to " +
			"sign. The Event names the issuer.",
		todo: "Disable one of the two signers: `kube-controller-manager` " +
			"([migrate-from-kcm.md](../how-to/migrate-from-kcm.md)), or the other installation.",
	},
	"CALoaded": {
		meaning: "The signer uses this CA. The Event is of type Normal and about the Secret.",
		todo:    nothing,
	},
}
