package parity

import "time"

// startRows test outcomes that depend on the flags.
var startRows = map[string]row{
	"own CA":                own(byHand),
	"own CA, approved":      own(node),
	"own CA, 10 min":        own(with(byHand, func(r *row) { r.seconds = 600 })),
	"own CA, 1 h":           own(with(byHand, func(r *row) { r.seconds = 3600 })),
	"own CA ends":           own(serving),
	"own CA ends, 10 min":   own(with(serving, func(r *row) { r.seconds = 600 })),
	"no CA for the signer":  own(with(client, func(r *row) { r.want = approvedOnly })),
	"approved too long ago": own(deviates(with(byHand, func(r *row) { r.conditions = conditions(since("Approved", 2*time.Hour)); r.want = approvedIssued }), "approved-unissued", approvedOnly)),
	"own CA, afterwards":    with(own(node), func(r *row) { r.live = true }),
	"no CA, refused":        own(with(client, func(r *row) { r.want, r.usages = approvedOnly, usages("any") })),

	"default lifetime":             byDefault(client),
	"default lifetime, 30 days":    byDefault(with(client, func(r *row) { r.seconds = 30 * 24 * 3600 })),
	"default lifetime, 365 days":   byDefault(with(client, func(r *row) { r.seconds = 365 * 24 * 3600 })),
	"default lifetime, 400 days":   byDefault(with(client, func(r *row) { r.seconds = 400 * 24 * 3600 })),
	"default lifetime, afterwards": byDefault(with(client, func(r *row) { r.live = true })),
	"CA that is none":              unfit(byHand, "unfit-ca", "is not a CA"),
	"CA not yet valid":             unfit(serving, "ca-not-yet-valid", "is not valid before"),

	"CA of another signer": with(client, func(r *row) { r.start, r.live = endedCAs, true }),
	"longest, 5 min":       with(client, func(r *row) { r.start, r.seconds = endedCAs, 600 }), // the least wish is ten minutes
	"CA ended":             with(byHand, func(r *row) { r.start, r.want = endedCAs, approvedOnly }),
	"CA that may not sign": with(unfit(serving, "unfit-ca", "may not sign certificates"), func(r *row) { r.start = endedCAs }),
}

func own(base row) row {
	base.start = ownCAs
	return base
}

func byDefault(base row) row {
	base.start = defaults
	return base
}

// unfit returns base with a CA that ours refuses for the reason in log.
func unfit(base row, id, log string) row {
	base = byDefault(deviates(base, id, approvedOnly))
	base.log = log
	return base
}
