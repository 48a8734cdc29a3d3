package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const tableHead = "| work | × floor | must | goal | floor, ms CPU | answerd, ms CPU | allocations | kB | p50, ms (floor) | p99, ms (floor) | first event, ms (floor) | upstream |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|---|\n"

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
	n, each := fx.slices(r)
	for _, l := range loads { // connections are made, caches filled and pages touched
		if _, err := l.askRepeatedly(ctx, 1, 0); err != nil {
			return "", err
		}
		if _, err := l.askRepeatedly(ctx, r.callers, each); err != nil {
			return "", err
		}
		defer l.client.CloseIdleConnections()
	}
	var all [2][]sliceResult
	var ratios []float64
	objects, bytes, err := service.allocated()
	if err != nil {
		return "", err
	}
	before, err := fx.upstream()
	if err != nil {
		return "", err
	}
	var used upstream
	for range n {
		var pair [2]sliceResult
		for i, p := range []*process{floor, service} {
			if i == 1 {
				if before, err = fx.upstream(); err != nil {
					return "", err
				}
			}
			if pair[i], err = measureSlice(ctx, p, loads[i], r.callers, each); err != nil {
				return "", err
			}
			if i == 1 {
				after, err := fx.upstream()
				if err != nil {
					return "", err
				}
				used = used.plus(after.minus(before))
			}
			all[i] = append(all[i], pair[i])
		}
		if r.latency {
			ratios = append(ratios, milliseconds(percentile(pair[1:], 50, wholeTime))/milliseconds(percentile(pair[:1], 50, wholeTime)))
		} else if pair[0].cpu > 0 {
			ratios = append(ratios, float64(pair[1].cpu)/float64(pair[0].cpu))
		}
	}
	afterObjects, afterBytes, err := service.allocated()
	if err != nil {
		return "", err
	}
	if fx.profiles != "" {
		if err := fx.profileRow(ctx, r, loads[1], fx.pprofAddrFile(r.setting())); err != nil {
			return "", err
		}
	}
	answers := 0
	for _, f := range all[1] {
		answers += f.answers
	}
	if err := used.expect(r.script, int64(answers)); err != nil {
		return "", err
	}
	cpu := func(side []sliceResult) float64 {
		var each []float64
		for _, f := range side {
			each = append(each, milliseconds(f.cpu))
		}
		return median(each)
	}
	both := func(q int, of func(timing) time.Duration) string {
		return fmt.Sprintf("%.3g (%.3g)", milliseconds(percentile(all[1], q, of)), milliseconds(percentile(all[0], q, of)))
	}
	return fmt.Sprintf("| %s | **%.2f** | %s | %s | %.3f | %.3f | %.0f | %.0f | %s | %s | %s | exact |\n", r.name, median(ratios), formatBound(r.must), formatBound(r.goal),
		cpu(all[0]), cpu(all[1]), (afterObjects-objects)/float64(answers), (afterBytes-bytes)/float64(answers)/1000,
		both(50, wholeTime), both(99, wholeTime), both(50, func(t timing) time.Duration { return t.first })), nil
}

func formatBound(x float64) string {
	if x == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", x)
}

// measureSlice measures one service under load for a time of d.
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

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func wholeTime(t timing) time.Duration { return t.whole }

// percentile returns the q-th percentile of all slices together.
func percentile(side []sliceResult, q int, of func(timing) time.Duration) time.Duration {
	var all []time.Duration
	for _, f := range side {
		for _, t := range f.timings {
			all = append(all, of(t))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)*q/100, len(all)-1)]
}

// upstream is what the model and the MCP server were asked.
type upstream struct{ model, calls, lists, others int64 }

func (fx *fixture) upstream() (upstream, error) {
	m, err := fx.model.get("/stats")
	if err != nil {
		return upstream{}, err
	}
	t, err := fx.tools.get("/stats")
	return upstream{m["requests"], t["calls"], t["lists"], t["others"]}, err
}

func (u upstream) minus(v upstream) upstream {
	return upstream{u.model - v.model, u.calls - v.calls, u.lists - v.lists, u.others - v.others}
}

func (u upstream) plus(v upstream) upstream {
	return upstream{u.model + v.model, u.calls + v.calls, u.lists + v.lists, u.others + v.others}
}

// expect is exactly what so many answers take: a request to the model for each step, one
// to the MCP server for each call, and nothing else.
func (u upstream) expect(s script, answers int64) error {
	want := upstream{model: answers * int64(s.Rounds+1), calls: answers * int64(s.Rounds*s.Calls)}
	if u != want {
		return fmt.Errorf("%d answers took %+v upstream, and not %+v", answers, u, want)
	}
	return nil
}
