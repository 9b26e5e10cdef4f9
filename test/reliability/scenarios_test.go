package reliability

import (
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// readiness is the readiness of ours that a scenario requires.
type readiness int

const (
	either readiness = iota // each scenario with it says why
	stays                   // it never falls
	falls                   // it falls during the fault and comes back
)

type scenario struct {
	name        string
	quick       bool          // "make test" goes through it
	oursOnly    bool          // kube-controller-manager does not: it has no inventory, no audit log and no such metrics
	replicas    int           // processes, with leader election if there is more than one
	config      string        // the configuration of ours, in YAML
	args        []string      // more flags of ours
	environment []string      // of the process
	spread      time.Duration // how long the load takes to be created; zero means ten seconds
	oldAge      time.Duration // how long ago old requests were denied; zero means four hours
	random      int           // requests with random content beside the load
	ready       readiness
	indicators  []indicator // must fire while it lasts
	mayFire     []indicator
	events      []string     // reasons of Events that must be written while it lasts
	recorded    audit.Event  // that the audit log must have, if set
	noneLost    bool         // each certificate is stored, whatever the answer was
	noRecords   bool         // the audit log is away for a while, so a certificate may be without a record
	prepare     func(*world) // is called before the program starts
	// fault causes the fault and returns when it is over, unless it calls over. The load begins at the same time.
	fault func(*world)
}

// whileDown are indicators of a replica whose calls fail. An API server that has just started may refuse calls, because it does not
// know all roles yet.
var whileDown = []indicator{noRight, notApproved, notStored, notDeleted}

// requestWrites are the resources to which approver, signer and cleaner write.
var requestWrites = []string{"certificatesigningrequests", "certificatesigningrequests/approval", "certificatesigningrequests/status"}

var scenarios = []scenario{
	{
		name: "random faults, and random requests",
		// It falls if the new process needs some time to start.
		quick: true, random: 100, spread: 20 * time.Second, ready: either, prepare: shortCA, fault: randomFaults,
		indicators: []indicator{notApproved, notStored}, mayFire: []indicator{noRight, notDeleted},
	},
	{
		name:  "30% of the writes conflict",
		ready: stays, indicators: []indicator{notApproved, notStored}, recorded: audit.Uncertain,
		fault: proxied(12*time.Second, faults.Rule{Verbs: faults.Writes, Resources: requestWrites, Share: 0.3, Do: faults.Answer(409)}),
	},
	{
		name:  "each write is answered 500 after it was stored",
		ready: stays, noneLost: true, indicators: []indicator{answered500, notDeleted}, recorded: audit.Stored,
		fault: proxied(12*time.Second, faults.Rule{Verbs: faults.Writes, Resources: requestWrites, Do: faults.Answer(500).Landed()}),
	},
	{
		name: "API server restarts",
		// It falls if both replicas lose the election, and start again, because the API server needs more than three seconds.
		replicas: 2, ready: either, indicators: []indicator{unanswered}, mayFire: whileDown, fault: restartAPIServer,
	},
	{
		name:     "etcd is stopped for 20 s",
		replicas: 2, ready: stays, indicators: []indicator{unanswered}, mayFire: whileDown, fault: stopEtcd,
	},
	{
		name:     "leader is killed every 6 s for two minutes",
		replicas: 2, ready: stays, spread: 125 * time.Second, indicators: []indicator{newLeader}, fault: killLeaders,
	},
	{
		name:  "leader is paused twice and wakes up",
		ready: stays, replicas: 2, spread: 20 * time.Second, indicators: []indicator{newLeader}, mayFire: whileDown, fault: pauseLeader,
	},
	{
		name:  "kube-controller-manager works beside it, with the same CA",
		ready: stays, indicators: []indicator{discardedCertificates},
		oursOnly: true, fault: besideTheirs(true),
	},
	{
		name:  "kube-controller-manager works beside it, with another CA",
		ready: stays, indicators: []indicator{foreign},
		events:   []string{"SecondSigner"},
		oursOnly: true, fault: besideTheirs(false),
	},
	{
		name:  "its clock is an hour ahead",
		ready: falls, indicators: []indicator{skewed}, oldAge: 90 * time.Minute, fault: setOwnClock(time.Hour),
	},
	{
		name:  "its clock is an hour behind",
		ready: falls, indicators: []indicator{skewed}, oldAge: 90 * time.Minute, fault: setOwnClock(-time.Hour),
	},
	{
		name:  "API server's clock goes back by a day",
		ready: falls, indicators: []indicator{skewed},
		spread: 30 * time.Second, prepare: allAhead, fault: setBack,
	},
	{
		name:  "signing Secret is empty, half, mismatched, a leaf, expired, garbage, 1 MB, and deleted",
		ready: falls, spread: 60 * time.Second, indicators: []indicator{caRejected}, fault: breakSecret,
	},
	{
		name:   "each of its roles is taken and given back",
		args:   []string{"--self-check-interval=1s"},
		spread: 60 * time.Second, ready: falls, indicators: []indicator{noRight, notApproved, notStored, notDeleted}, fault: loseRoles,
	},
	{
		name:  "authorizer webhook times out",
		ready: stays, prepare: slowAuthorizer, fault: hangAuthorizer,
	},
	{
		name:     "inventory is down, slow and lies",
		oursOnly: true, prepare: startInventory, ready: stays, spread: 15 * time.Second,
		indicators: []indicator{unavailable, notOwned}, events: []string{"InventoryUnavailable", "SANNotOwned"}, fault: breakInventory,
	},
	{
		name:     "watches of Nodes and Services stall",
		oursOnly: true, ready: stays, indicators: []indicator{unknownNode}, events: []string{"NodeNotFound"}, fault: stallWatches,
	},
	{
		name:     "disk of the audit log is full",
		oursOnly: true, noRecords: true, ready: stays, indicators: []indicator{notAudited}, prepare: fullDisk, fault: freeDisk,
	},
	{
		name:     "GOMEMLIMIT is reached",
		oursOnly: true, ready: stays, environment: []string{"GOMEMLIMIT=24MiB"}, fault: reachSoftLimit,
	},
	{
		name: "the only replica is killed, also while it starts",
		// Nothing answers while the process is down. When it starts, it is ready at once or after some time.
		ready: either, indicators: []indicator{restarted}, fault: restart,
	},
}
