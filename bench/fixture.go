package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fixture holds the child processes of a run of bench. The floors and services start when a row first needs them.
type fixture struct {
	options
	model, tools *process
	nats         *process // nil before a row needs it
	floors       map[setting]*process
	services     map[setting]*process
}

// newFixture starts the model and the MCP server. The caller must close the fixture, also after an error.
func (o options) newFixture(ctx context.Context) (fx *fixture, err error) {
	fx = &fixture{options: o, floors: map[setting]*process{}, services: map[setting]*process{}}
	if fx.model, err = startSelf(ctx, "model"); err == nil {
		fx.tools, err = startSelf(ctx, "tools")
	}
	return fx, err
}

// close kills all child processes.
func (fx *fixture) close() error {
	var errs []error
	for _, p := range []*process{fx.model, fx.tools, fx.nats} {
		if p != nil {
			errs = append(errs, p.kill())
		}
	}
	for _, p := range fx.floors {
		errs = append(errs, p.kill())
	}
	for _, p := range fx.services {
		errs = append(errs, p.kill())
	}
	return errors.Join(errs...)
}

// toolsURL returns the URL of the MCP server for a setting. The URL's path selects the protocol version and the number
// of tools.
func (fx *fixture) toolsURL(s setting) string {
	era := "old"
	if s.newer {
		era = "new"
	}
	return fmt.Sprintf("%s/%s/%d", fx.tools.url, era, s.tools)
}

// comparisonFor returns the process that answerd is compared with in a row: the floor, or for a plain row another
// answerd, without tracing and with its log in memory.
func (fx *fixture) comparisonFor(ctx context.Context, r row) (*process, error) {
	s := r.setting()
	if r.plain {
		s.traced, s.log = false, ""
		return fx.serviceFor(ctx, s)
	}
	return fx.floorFor(ctx, s)
}

// floorFor returns the floor's process for a setting, or with -against the process of the other answerd. It starts the
// process if it does not run yet.
func (fx *fixture) floorFor(ctx context.Context, s setting) (*process, error) {
	if fx.against == "" {
		s.traced, s.log = false, "" // the floor has neither
	}
	if p := fx.floors[s]; p != nil {
		return p, nil
	}
	var p *process
	var err error
	if fx.against != "" {
		p, err = startService(ctx, fx.against, fx.serviceEnv(s))
	} else {
		p, err = startSelf(ctx, "floor", fx.model.url+"/v1/chat/completions", fx.toolsURL(s))
	}
	if err == nil {
		fx.floors[s] = p
	}
	return p, err
}

// serviceEnv returns answerd's environment for a setting. It raises the limits that would refuse so much load, and
// turns off tool search, which would offer the model fewer tools. The settings of -env come last, so they take
// precedence.
func (fx *fixture) serviceEnv(s setting) []string {
	env := []string{
		"LLM_BASE_URL=" + fx.model.url + "/v1", "LLM_API_KEY=key", "MCP_URL=" + fx.toolsURL(s),
		"MAX_CONCURRENT_RUNS=20000", "MAX_CONCURRENT_CALLS=2048", "DISCONNECT_GRACE=0s",
		"TOOL_SEARCH_MIN_TOOLS=0", "TOOL_SEARCH_MIN_BYTES=0",
	}
	if fx.profiles != "" {
		env = append(env, "BENCH_PPROF="+fx.pprofAddrFile(s))
	}
	if s.traced {
		env = append(env, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+fx.tools.url+"/v1/traces",
			"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1")
	}
	switch s.log {
	case "file":
		env = append(env, "EVENTS_URL=file:"+filepath.Join(fx.work, "events"), "EVENTS_MAX_BYTES=4GiB")
	case "nats":
		env = append(env, "EVENTS_URL="+strings.Replace(fx.nats.url, "http:", "nats:", 1), "EVENTS_MAX_BYTES=4GiB")
	}
	return append(env, fx.env...)
}

// pprofAddrFile returns the path of the file to which a profiled service writes the address of its pprof server.
func (fx *fixture) pprofAddrFile(s setting) string {
	return filepath.Join(fx.work, fmt.Sprintf("pprof-%d-%t-%t-%s-%t", s.tools, s.newer, s.traced, s.log, s.apart))
}

// serviceFor returns answerd's process for a setting. It starts the process if it does not run yet, and first the NATS
// server if the setting needs it.
func (fx *fixture) serviceFor(ctx context.Context, s setting) (*process, error) {
	if p := fx.services[s]; p != nil {
		return p, nil
	}
	if s.log == "nats" && fx.nats == nil {
		var err error
		if fx.nats, err = startSelf(ctx, "nats", filepath.Join(fx.work, "nats")); err != nil {
			return nil, err
		}
	}
	p, err := startService(ctx, fx.answerd, fx.serviceEnv(s))
	if err == nil {
		fx.services[s] = p
	}
	return p, err
}

// median returns the median of the values: the upper one of the two in the middle if their number is even, and 0 if
// there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// options holds the flags, and the directory for temporary files.
type options struct {
	row      string
	quick    bool
	answerd  string
	against  string
	env      []string
	profiles string
	work     string // a temporary directory
}

// sliceCount returns how many slices of time each of the two services is measured for in a row, and how long a slice
// is. The kernel counts CPU time in ticks of 10 ms, so a much shorter slice would be too inexact.
func (o options) sliceCount(r row) (n int, each time.Duration) {
	switch {
	case o.against != "" || r.plain && !o.quick: // answerd with answerd: the difference is small
		return 31, 400 * time.Millisecond
	case o.quick:
		return 3, 400 * time.Millisecond
	}
	return 5, 700 * time.Millisecond
}
