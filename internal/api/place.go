package api

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"answerd/internal/agent"
)

// placeProblem tells somebody who was not let in whether it is he who asks for too much,
// or all together, and when to come back.
func placeProblem(r *agent.Refusal) *problem {
	var p *problem
	switch {
	case errors.Is(r, agent.ErrTooMany):
		p = newProblem("rate_limited", "As many runs as one caller may have are going on.")
	case errors.Is(r, agent.ErrTooFast):
		p = newProblem("rate_limited", "Runs are started faster than one caller may.")
	case errors.Is(r, agent.ErrMemoryShort):
		p = newProblem("overloaded", "The service has no memory to spare at the moment.")
	default:
		p = newProblem("overloaded", "As many runs as this service allows are going on.")
	}
	p.header.Set("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
	return p
}

// addressOf is by what anonymous callers are told apart: the address of their connection,
// of IPv6 the network that one subscriber has. What a header says of it anybody could
// write, so behind a proxy all of them are one.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		network, _ := ip.Prefix(64)
		return network.String()
	}
	return ip.String()
}
