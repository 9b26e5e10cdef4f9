package explain

// nothing is the todo of a success.
const nothing = "Nothing."

// advice is the row of docs/reference/reasons.md about a reason.
type advice struct{ meaning, todo string }

// write writes what the reason means and what to do about it, if there is anything to do.
func (a advice) write(p *page) {
	if a.todo != "" && a.todo != nothing {
		p.row("meaning", a.meaning)
		p.row("what to do", a.todo)
	}
}

// approverReasons holds the reasons of the approver. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var approverReasons = map[string]advice{
	"AutoApproved": {
		meaning: "Reason of the Approved condition.",
		todo:    nothing,
	},
	"NotAuthorized": {
		meaning: "The requester has none of the permissions that the Event names; or it is none of those who may " +
			"bootstrap this node, or does not exist any more, as the Event says. What can change is asked again after " +
			"a second, doubling up to a minute, so a permission that comes late works within one.",
		todo: "If the requester is to join nodes, bind " +
			"`system:certificates.k8s.io:certificatesigningrequests:nodeclient` to it or its group; for nodes that " +
			"renew, bind `system:certificates.k8s.io:certificatesigningrequests:selfnodeclient` to `system:nodes`. For " +
			"a bootstrap token, see that it has `usage-bootstrap-signing`, and that it is for this node. If not, find " +
			"out who holds that credential.",
	},
	"ShapeMismatch": {
		meaning: "The request is for the kubelet client signer but not what that signer may sign; the Event names " +
			"the first difference.",
		todo: "Correct the client: a request's contents can't be changed, it must make a new one.",
	},
	"RequesterNotNode": {
		meaning: "A serving certificate is asked for by somebody who is no kubelet: a ServiceAccount, a person, a " +
			"cloud identity that is not mapped to `system:node:NAME`.",
		todo: "Only a kubelet gets one. Webhooks and Services need another signer; for a node, correct how its " +
			"credential is mapped to a user.",
	},
	"CommonNameMismatch": {
		meaning: "The common name is not the requester's user name: a node asks as another.",
		todo:    "Correct the client; if it is a kubelet, find out who holds its credential.",
	},
	"UsagesNotPermitted": {
		meaning: "The usages are not those of a serving certificate.",
		todo:    "Correct the client: digital signature and server auth, with or without key encipherment.",
	},
	"SANTypeNotPermitted": {
		meaning: "The request holds e-mail addresses or URIs.",
		todo:    "Correct the client.",
	},
	"UnexpectedContent": {
		meaning: "The request holds something that no kubelet asks for: another subject attribute, an extension, or " +
			"another kind of name.",
		todo: "Find out what made it; it is no kubelet.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is none that a client could match with a host, nor an IP address in its canonical " +
			"form.",
		todo: "Correct the client; if it is a kubelet, find out who holds its credential: other programs may read " +
			"such a name as several.",
	},
	"SANMissing": {
		meaning: "There is neither a DNS name nor an IP address in it.",
		todo:    "A kubelet without addresses asks so: give it `--node-ip`, or its cloud provider time.",
	},
	"SANReserved": {
		meaning: "A name or an address that no node can have: of a Service, of everybody, or of the API server, by " +
			"its serving certificate, its endpoints, the kubeconfig or `cluster-info`.",
		todo: "If it is a Service's name or external address that is the node's own, change the Service. If an API " +
			"server runs on the node, name the node in `apiServerNodes`; else find out why the node claims it.",
	},
	"NodeNotFound": {
		meaning: "No source knows the node yet.",
		todo:    "Nothing, if it has just been created. Else see why its Node or Machine is missing.",
	},
	"AddressNotPublished": {
		meaning: "The node is known, and has no address yet; or it asks for one that a CIDR, a suffix or a pattern " +
			"gives to several nodes, and its Node does not report it.",
		todo: "Nothing; the kubelet or a cloud provider fills it in. If the Node never reports it, write down whose " +
			"it is in a row of its own.",
	},
	"SANNotOwned": {
		meaning: "A name or an address does not belong to the node, and the Event has both lists; or the machine of " +
			"that name has become another node.",
		todo: "If it does belong to it, have the source say so (Machine, static list, `--node-ip`); else find out " +
			"why the node claims it.",
	},
	"SANContested": {
		meaning: "Another machine, row or Node has the better claim; or other Nodes report it with the same right, " +
			"so that none of them gets it; or this Node reports what belongs to two others, and is left out of the " +
			"comparison.",
		todo: "Find out which Node is right. Delete the Node or the Machine that is gone; the other is then " +
			"approved at once. If several nodes share the address, add the row that the Event names. If the Machine is " +
			"this node's own, see why its `status.nodeRef` does not say so.",
	},
	"InventoryUnavailable": {
		meaning: "A source can't say what belongs to the node, or who expects it, and weaker ones do not count in " +
			"its place; or two machines would become the same node; or Nodes, Services, leases or the requester can't " +
			"be looked up; or more than 50 other Nodes report the same addresses and may have the better claim.",
		todo: "Repair the source, or rename or delete one of the machines, or grant the right that is missing; the " +
			"Event has the error.",
	},
	"InventoryPending": {
		meaning: "A source that the approver asks over the network, such as a webhook, has not answered for a second. " +
			"Nothing else waits for it: renewals, and requests for nodes that stronger sources know, go on.",
		todo: "Nothing: the request goes on as soon as the source has answered. If many requests wait, see why the " +
			"source is slow.",
	},
	"NotExpected": {
		meaning: "A first certificate is asked for a node that no source expects, or whose machine is being " +
			"deleted.",
		todo: "Nothing, if its Machine is on its way. Else add it to the inventory, or find out who holds the " +
			"bootstrap credential.",
	},
	"NodeAlive": {
		meaning: "A Node of that name is there, or its lease, and it is alive or not known to be dead.",
		todo: "If its machine is gone, delete the Node; with `rejoin`, a node whose lease has stood still for a " +
			"minute may join again. Else find out who asks for the name of a node at work.",
	},
	"MachineBound": {
		meaning: "The machine has become a node already: another one, or this one, which is dead or gone.",
		todo: "If it is to join again, switch on `approval.nodeClient.rejoin`, or delete the dead Node and make the " +
			"machine anew.",
	},
	"OutsideJoinWindow": {
		meaning: "The machine was created too long ago, or not yet, or it is not known when.",
		todo: "A new machine that starts slowly needs a longer `joinWindow`. If it has waited for long in vain, " +
			"make the machine anew.",
	},
	"RequestTooOld": {
		meaning: "The request for a first certificate is older than `maxRequestAge`: its kubelet has given up on " +
			"it.",
		todo: "Nothing, the kubelet asks anew. If it does not, look whether it runs.",
	},
	"RateLimited": {
		meaning: "Requests of one requester for one node and signer were approved too often in a short time " +
			"(`approval.limit`). The newest request is approved when the next one is due.",
		todo: "Find out why so many are asked for: a kubelet that can't keep its certificate, or somebody who has " +
			"its credential. If it is as it should be, raise `burst` or `perHour`.",
	},
	"NodeBlocked": {
		meaning: "The node that it is for or from is on the block list.",
		todo:    "Nothing, if it is to stay out. Else take its name off the list: the request goes on within a second.",
	},
	"RequestTooLarge": {
		meaning: "The request is larger than `requestLimits` permit: its bytes, the attributes of its subject, its " +
			"names, or its attributes and extensions. The Event names the limit. Nothing else of it was read.",
		todo: "Find out what made it: a kubelet's request has a tenth of that. If it is legitimate, raise the limit " +
			"that the Event names.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA of at most 8,192 bits, nor ECDSA P-256, P-384 or P-521, nor Ed25519; or " +
			"its RSA exponent is none that is in use. Nothing was computed with it.",
		todo: "Make a new request with a permitted key.",
	},
	"Malformed": {
		meaning: "The request holds no PKCS#10 that can be read. The API server lets none in, so it was stored by " +
			"other means.",
		todo: "Delete it.",
	},
	"InternalError": {
		meaning: "Reading the request failed in a way that is a defect of csr-controller-manager. Other requests " +
			"are not affected. It is read again within a minute.",
		todo: "Report it, with the request (`kubectl get csr NAME -o yaml`).",
	},
}

// signerReasons holds the reasons of the signer. Their rows in docs/reference/reasons.md are written from here:
// go test ./commands/explain -update-explained
var signerReasons = map[string]advice{
	"SignerValidationFailure": {
		meaning: "The request breaks the rules of one of Kubernetes' signers. The message is " +
			"kube-controller-manager's.",
		todo: "Correct the client's usages, subject or names; see the table of signers in the Kubernetes " +
			"documentation.",
	},
	"UsagesNotPermitted": {
		meaning: "A usage is unknown, or a custom signer's configuration does not permit it; or a custom signer was " +
			"asked for no extended key usage.",
		todo: "Ask for other usages, or extend `signing.signers[].usages`. Without an extended key usage a " +
			"certificate is good for everything: ask for one; `allowNoExtKeyUsage` is for a CA that API servers do not " +
			"trust for clients.",
	},
	"RequestTooLarge": {
		meaning: "The request is larger than `requestLimits` permit: its bytes, the attributes of its subject, its " +
			"names, or its attributes and extensions. Or it does not fit into an object together with its certificate, " +
			"of which etcd stores 1.5 MiB. The Event names the limit. Nothing else of it was read.",
		todo: "Find out what made it: a kubelet's request has a tenth of that. If it is legitimate, raise the limit " +
			"that the Event names. If the Event says that the request does not fit into an object with its " +
			"certificate, ask with fewer names, labels and annotations.",
	},
	"KeyNotPermitted": {
		meaning: "The key is neither RSA of at most 8,192 bits, nor ECDSA P-256, P-384 or P-521, nor Ed25519; or " +
			"its RSA exponent is none that is in use. Nothing was computed with it.",
		todo: "Make a new request with a permitted key.",
	},
	"KeyTooWeak": {
		meaning: "An RSA key that is too short.",
		todo:    "Use ECDSA P-256, or RSA of `signing.minRSABits` bits or more.",
	},
	"SubjectNotPermitted": {
		meaning: "The subject is one that this signer never issues, such as `O=system:masters`; or API servers " +
			"would take the client for a front proxy, which acts for any user.",
		todo: "Ask for another subject, or give a custom signer a CA of its own. Change " +
			"`signing.signers[].forbiddenSubjects` only if you know why.",
	},
	"NameNotPermitted": {
		meaning: "A DNS name is none that a client could match with a host (labels of letters, digits, `-` and `_`, " +
			"at most 253 bytes), nor an IP address in its canonical form; or it is a wildcard for a custom signer that " +
			"does not permit them; or API servers trust the CA of a custom signer for clients, and a server's name is " +
			"not among its `allowedNames`.",
		todo: "Ask for other names, set `signing.signers[].allowWildcards`, extend " +
			"`signing.signers[].allowedNames`, or give the signer a CA that API servers do not trust for clients.",
	},
	"Malformed": {
		meaning: "No PKCS#10 that can be read, or its signature does not match its key. What the API server can't " +
			"validate it can't mark either, and `kubectl describe` may refuse to show it: then only the Event and " +
			"`explain` say so, as for a certificate or an approval that the API server does not take.",
		todo: "Delete it.",
	},
	"RequestTooOld": {
		meaning: "It is due for deletion, so nobody waits for its certificate any more. A backlog of stale " +
			"approvals is never signed.",
		todo: "Make a new request.",
	},
	"NotStored": {
		meaning: "The API server can read the request, but has refused 20 times, for a quarter of an hour, to store " +
			"its certificate; the Event has its answer. An admission webhook is a usual cause. A write without an " +
			"answer does not count, and neither does one that the manager may not make.",
		todo: "Correct what the Event names. A kubelet makes a new request by itself; for others, make one.",
	},
	"CertificateMismatch": {
		meaning: "The finished certificate is not the one that was judged, or holds more than its signer may issue. " +
			"It was discarded and not stored; the message names each difference. The signer signs this request again " +
			"only after a restart or with another CA.",
		todo: "This must never happen: report it as a defect, with the request. To get a certificate, ask for other " +
			"names.",
	},
	"InternalError": {
		meaning: "Reading the request failed in a way that is a defect of csr-controller-manager. Other requests " +
			"are not affected. It is read again within a minute.",
		todo: "Report it, with the request (`kubectl get csr NAME -o yaml`).",
	},
	"NodeBlocked": {
		meaning: "The node that it is for or from is on the block list, whoever approved.",
		todo:    "Nothing, if it is to stay out. Else take its name off the list: it is signed within a second.",
	},
	"InventoryUnavailable": {
		meaning: "There is a block list, and it has not been read since the start, so nobody can say whether the " +
			"node is on it.",
		todo: "Create the ConfigMap with the key `nodes`, or grant `get`, `list` and `watch` on it; the Event says " +
			"which.",
	},
	"CAMissing": {
		meaning: "The Secret or the files are not there, or can't be read.",
		todo: "Create them; what waits is signed at once. For \"forbidden\", grant `get`, `list` and `watch` on " +
			"that Secret.",
	},
	"CAInvalid": {
		meaning: "They are there but can't be used; the message says why: not PEM, key and certificate do not " +
			"belong together, not a CA, not yet valid, encrypted key. A CA that was good before stays in use.",
		todo: "Correct them; they are read again at once.",
	},
	"CAExpired": {
		meaning: "The signing certificate has ended, or one of its chain, which is named.",
		todo:    "Replace it, and what trusts it.",
	},
	"ClockSkewed": {
		meaning: "The manager's clock and the API server's differ by more than five minutes, or the time of the API " +
			"server is not known. Certificates would not be valid when they should. Approving and cleaning go on: they " +
			"count ages by the API server's time.",
		todo: "Synchronize the clock of the manager's node, or that of the API server that is wrong. What waits is " +
			"signed within a minute.",
	},
	"CANotProven": {
		meaning: "With `rotation.enabled`: the Secret holds no CA yet that is proven to be trusted, or it is not " +
			"proven for this signer.",
		todo: "See what its SigningAuthority waits for: `kubectl get signingauthorities -o wide`. If there is none " +
			"for the Secret, make one; it must name the signer.",
	},
	"CATrustUnknown": {
		meaning: "API servers have not said whether they trust the CA for clients, and if they do, the request must " +
			"be refused. The message says which did not answer, and what it would be refused for. Or it is not known " +
			"yet whether they accept the CA for front proxies.",
		todo: "Make the API server that is named reachable for the manager, grant `list` on `endpointslices` in " +
			"`default` and what `config/rbac/ca_trust.yaml` grants, or name the API servers in `signing.apiServers`. " +
			"If the names are known, list them in `signing.signers[].allowedNames`.",
	},
	"LedgerUnavailable": {
		meaning: "With `rotation.enabled`: the ledger of the CA, ConfigMap NAME-ledger beside the Secret NAME, " +
			"can't be written or read, has no account of this CA, or is closed for it because a rotation is " +
			"completing. Nothing is signed that it does not know of.",
		todo: "For \"forbidden\", grant `get` and `update` on that ConfigMap. If it can't be read, repair it: it is " +
			"never overwritten. If it has no account of the CA, somebody has deleted it: the rotation controller makes " +
			"it anew, and takes what was issued before for outstanding; see that it runs (`kubectl get " +
			"signingauthorities -o wide`). If it is closed, the signer has not seen the new CA: see that it may watch " +
			"the Secret.",
	},
	"LifetimeCut": {
		meaning: "A certificate was issued for less time than asked because the CA ends before.",
		todo:    "Replace the CA soon: all certificates will end with it.",
	},
	"SecondSigner": {
		meaning: "Somebody else has stored the certificate of a request that this manager signs for. The Event " +
			"names the field manager that the API server noted. It is written once in ten minutes for each of them.",
		todo: "Switch one of the two off for that signer: `kube-controller-manager` " +
			"([migrate-from-kcm.md](../how-to/migrate-from-kcm.md)), or the other installation. A name like `kubectl-edit` is a " +
			"person.",
	},
	"CALoaded": {
		meaning: "Normal Event about the Secret: that CA is in use.",
		todo:    nothing,
	},
}
