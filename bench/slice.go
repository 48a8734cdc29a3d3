package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const tableHead = "| work | × floor | must | goal | floor, ms CPU | answerd, ms CPU | allocations | kB | p50, ms (floor) | p99, ms (floor) | first event, ms (floor) | upstream |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|---|\n"

// comparison holds the measurements of a row: those of answerd, and those of the floor or the process in its place.
type comparison struct {
	floor, service []sliceResult
	ratios         []float64 // of answerd to the floor, by turn
	used           upstream  // the requests that answerd sent
	objects, bytes float64   // allocated by answerd
}

// measureRow measures one row and returns its line of the table.
func (fx *fixture) measureRow(ctx context.Context, r row) (string, error) {
	floor, err := fx.comparisonFor(ctx, r)
	if err != nil {
		return "", err
	}
	service, err := fx.serviceFor(ctx, r.setting())
	if err != nil {
		return "", err
	}
	loads := [2]*load{newLoad(floor.url, r), newLoad(service.url, r)}
	for _, l := range loads {
		defer l.client.CloseIdleConnections()
	}
	c, err := fx.compareServices(ctx, r, [2]*process{floor, service}, loads)
	if err != nil {
		return "", err
	}
	if fx.profiles != "" {
		if err := fx.profileRow(ctx, r, loads[1], fx.pprofAddrFile(r.setting())); err != nil {
			return "", err
		}
	}
	if err := c.used.checkCounts(r.script, int64(c.answers())); err != nil {
		return "", err
	}
	return c.formatLine(r), nil
}

// compareServices measures the two services, the floor and answerd, in turns. Before that, it asks each of them
// questions for the time of a slice, so that connections are open and caches are filled.
func (fx *fixture) compareServices(ctx context.Context, r row, services [2]*process, loads [2]*load) (c comparison, err error) {
	n, each := fx.sliceCount(r)
	for _, l := range loads {
		if _, err := l.askRepeatedly(ctx, 1, 0); err != nil {
			return c, err
		}
		if _, err := l.askRepeatedly(ctx, r.callers, each); err != nil {
			return c, err
		}
	}

	objects, bytes, err := services[1].allocations()
	if err != nil {
		return c, err
	}

	for range n {
		floor, err := measureSlice(ctx, services[0], loads[0], r.callers, each)
		if err != nil {
			return c, err
		}
		before, err := fx.upstream()
		if err != nil {
			return c, err
		}
		service, err := measureSlice(ctx, services[1], loads[1], r.callers, each)
		if err != nil {
			return c, err
		}
		after, err := fx.upstream()
		if err != nil {
			return c, err
		}
		c.used = c.used.plus(after.minus(before))
		c.floor, c.service = append(c.floor, floor), append(c.service, service)
		if r.latency {
			c.ratios = append(c.ratios, milliseconds(percentile([]sliceResult{service}, 50, wholeTime))/milliseconds(percentile([]sliceResult{floor}, 50, wholeTime)))
		} else if floor.cpu > 0 {
			c.ratios = append(c.ratios, float64(service.cpu)/float64(floor.cpu))
		}
	}

	afterObjects, afterBytes, err := services[1].allocations()
	c.objects, c.bytes = afterObjects-objects, afterBytes-bytes
	return c, err
}

// answers returns how many answers answerd gave in all slices.
func (c *comparison) answers() int {
	n := 0
	for _, s := range c.service {
		n += s.answers
	}
	return n
}

// formatLine returns the row's line of the table. The latencies in parentheses are the floor's.
func (c *comparison) formatLine(r row) string {
	cpu := func(side []sliceResult) float64 {
		var each []float64
		for _, s := range side {
			each = append(each, milliseconds(s.cpu))
		}
		return median(each)
	}
	both := func(q int, timeOf func(timing) time.Duration) string {
		return fmt.Sprintf("%.3g (%.3g)", milliseconds(percentile(c.service, q, timeOf)), milliseconds(percentile(c.floor, q, timeOf)))
	}
	answers := float64(c.answers())
	return fmt.Sprintf("| %s | **%.2f** | %s | %s | %.3f | %.3f | %.0f | %.0f | %s | %s | %s | exact |\n", r.name, median(c.ratios), formatBound(r.must), formatBound(r.goal),
		cpu(c.floor), cpu(c.service), c.objects/answers, c.bytes/answers/1000,
		both(50, wholeTime), both(99, wholeTime), both(50, func(t timing) time.Duration { return t.first }))
}

// formatBound returns a bound of the table, or a dash if there is none.
func formatBound(x float64) string {
	if x == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", x)
}

// measureSlice measures one service under load for the time d.
func measureSlice(ctx context.Context, p *process, l *load, callers int, d time.Duration) (sliceResult, error) {
	before, err := p.cpuTime()
	if err != nil {
		return sliceResult{}, err
	}
	timings, err := l.askRepeatedly(ctx, callers, d)
	if err != nil {
		return sliceResult{}, err
	}
	after, err := p.cpuTime()
	if err != nil {
		return sliceResult{}, err
	}
	return sliceResult{cpu: (after - before) / time.Duration(len(timings)), answers: len(timings), timings: timings}, nil
}

// milliseconds returns d in milliseconds.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// wholeTime returns the time until the end of an answer.
func wholeTime(t timing) time.Duration { return t.whole }

// percentile returns the q-th percentile of the times that timeOf returns for all answers in the slices. It returns 0
// if there are none.
func percentile(side []sliceResult, q int, timeOf func(timing) time.Duration) time.Duration {
	var all []time.Duration
	for _, f := range side {
		for _, t := range f.timings {
			all = append(all, timeOf(t))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)*q/100, len(all)-1)]
}

// upstream counts the requests to the model and the MCP server.
type upstream struct{ model, calls, lists, others int64 }

// upstream returns how many requests the model and the MCP server have received so far.
func (fx *fixture) upstream() (upstream, error) {
	m, err := fx.model.getStats("/stats")
	if err != nil {
		return upstream{}, err
	}
	t, err := fx.tools.getStats("/stats")
	return upstream{m["requests"], t["calls"], t["lists"], t["others"]}, err
}

// minus returns the requests since v.
func (u upstream) minus(v upstream) upstream {
	return upstream{u.model - v.model, u.calls - v.calls, u.lists - v.lists, u.others - v.others}
}

// plus returns the sum of both counts.
func (u upstream) plus(v upstream) upstream {
	return upstream{u.model + v.model, u.calls + v.calls, u.lists + v.lists, u.others + v.others}
}

// checkCounts returns an error unless u is exactly what that many answers of the script need: one request to the model
// for each step, one to the MCP server for each call, and no other.
func (u upstream) checkCounts(s script, answers int64) error {
	want := upstream{model: answers * int64(s.Rounds+1), calls: answers * int64(s.Rounds*s.Calls)}
	if u != want {
		return fmt.Errorf("%d answers took %+v upstream, and not %+v", answers, u, want)
	}
	return nil
}
