package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// house is every process of a run.
type house struct {
	options
	model, tools *process
	floors       map[setting]*process
	services     map[setting]*process
}

func (o options) newHouse(ctx context.Context) (h *house, err error) {
	h = &house{options: o, floors: map[setting]*process{}, services: map[setting]*process{}}
	if h.model, err = self(ctx, "model"); err == nil {
		h.tools, err = self(ctx, "tools")
	}
	return h, err
}

// close ends all children.
func (h *house) close() error {
	var errs []error
	for _, p := range []*process{h.model, h.tools} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	for _, p := range h.floors {
		errs = append(errs, p.stop())
	}
	for _, p := range h.services {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}

func (h *house) toolsURL(s setting) string {
	era := "old"
	if s.newer {
		era = "new"
	}
	return fmt.Sprintf("%s/%s/%d", h.tools.url, era, s.tools)
}

// beside is what a row is measured against.
func (h *house) beside(ctx context.Context, r row) (*process, error) {
	s := r.setting()
	if r.tracing {
		s.traced = false
		return h.service(ctx, s)
	}
	return h.floorFor(ctx, s)
}

// floorFor is the floor beside the service of that setting, or the binary that takes its place.
func (h *house) floorFor(ctx context.Context, s setting) (*process, error) {
	if h.against == "" {
		s.traced = false // the same floor
	}
	if p := h.floors[s]; p != nil {
		return p, nil
	}
	var p *process
	var err error
	if h.against != "" {
		p, err = answerd(ctx, h.against, h.environ(s))
	} else {
		p, err = self(ctx, "floor", h.model.url+"/v1/chat/completions", h.toolsURL(s))
	}
	if err == nil {
		h.floors[s] = p
	}
	return p, err
}

// environ is the configuration: the defaults, but for what would refuse so much load, and
// the search for tools, which would offer fewer.
func (h *house) environ(s setting) []string {
	env := []string{
		"LLM_BASE_URL=" + h.model.url + "/v1", "LLM_API_KEY=key", "MCP_URL=" + h.toolsURL(s),
		"MAX_CONCURRENT_RUNS=20000", "MAX_CONCURRENT_CALLS=2048", "DISCONNECT_GRACE=0s",
		"TOOL_SEARCH_MIN_TOOLS=0", "TOOL_SEARCH_MIN_BYTES=0",
	}
	if h.profiles != "" {
		env = append(env, "BENCH_PPROF="+h.door(s))
	}
	if s.traced {
		env = append(env, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+h.tools.url+"/v1/traces",
			"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1")
	}
	return append(env, h.env...)
}

// door is the file that says where a service that is profiled can be asked for that.
func (h *house) door(s setting) string {
	return filepath.Join(h.work, fmt.Sprintf("pprof-%d-%t-%t-%t", s.tools, s.newer, s.traced, s.apart))
}

// service is the answerd of that setting, connected.
func (h *house) service(ctx context.Context, s setting) (*process, error) {
	if p := h.services[s]; p != nil {
		return p, nil
	}
	p, err := answerd(ctx, h.answerd, h.environ(s))
	if err == nil {
		h.services[s] = p
	}
	return p, err
}

// measure measures all rows and prints the table.
func (o options) measure(ctx context.Context, out io.Writer) (err error) {
	h, err := o.newHouse(ctx)
	defer func() { err = errors.Join(err, h.close()) }()
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Fprint(out, tableHead)
	found := false
	for _, r := range rows {
		if !strings.Contains(r.name, o.row) {
			continue
		}
		found = true
		line, err := h.measureRow(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprint(out, line)
	}
	for _, e := range extras {
		if !strings.Contains(e.name, o.row) {
			continue
		}
		found = true
		line, err := e.measure(ctx, h)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		fmt.Fprintf(out, "| %s | %s |\n", e.name, line)
	}
	if !found {
		return fmt.Errorf("no row has %q in its name", o.row)
	}
	fmt.Fprintf(out, "\n%s in all; no errors, every answer checked.\n", time.Since(began).Round(time.Second))
	return nil
}

// median is the middle one.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
