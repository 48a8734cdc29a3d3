// Command bench measures the cost that answerd adds to an answer. It compares answerd's CPU time per
// request with that of the floor, which is the least that a net/http program can do for the same
// requests.
//
//	go run ./bench                 all rows; takes a quarter of an hour
//	go run ./bench -row burst      only rows whose name contains burst
//	go run ./bench -quick          short slices; not exact enough for the table
//	go run ./bench -answerd FILE   measures this binary instead of building one
//	go run ./bench -against FILE   compares with another answerd instead of the floor, in 31 slices each
//
// Model, MCP server, floor and answerd are separate processes, and this process makes the load, so
// only the service is measured. Floor and answerd are measured in turns, so that other work of the
// machine disturbs both. All answers are checked completely, and all requests to the model and the MCP
// server are counted; a missing or unexpected one fails the run.
//
// docs/internals/performance.md explains the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// main runs until the rows are measured or a signal arrives.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// roles has a service for each role. bench starts itself as a child process whose first argument is the role.
var roles = map[string]func(args []string) error{
	"floor": serveFloor,
	"model": serveModel,
	"tools": serveTools,
	"nats":  serveNATS,
}

// run measures what the flags in args select and prints the table to out. It builds answerd unless -answerd names a
// binary. If args begins with a role, run serves that role instead.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && roles[args[0]] != nil {
		return roles[args[0]](args[1:])
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.row, "row", "", "only rows with this in their name")
	flags.BoolVar(&o.quick, "quick", false, "short slices")
	flags.StringVar(&o.answerd, "answerd", "", "the binary to measure; built from here if empty")
	flags.StringVar(&o.against, "against", "", "another binary of answerd, to measure against in place of the floor")
	flags.Func("env", "a setting for answerd besides, such as GOGC=200; may be repeated", func(s string) error {
		o.env = append(o.env, s)
		return nil
	})
	flags.StringVar(&o.profiles, "profiles", "", "directory for profiles of answerd under each row; not with -answerd")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.work = dir
	if o.answerd == "" {
		if o.answerd, err = o.buildService(ctx, dir); err != nil {
			return err
		}
	}
	return o.measureAll(ctx, out)
}

// measureAll measures the rows and extras whose names contain o.row and prints the table. It stops at the first error,
// and returns one if no name contains o.row.
func (o options) measureAll(ctx context.Context, out io.Writer) (err error) {
	fx, err := o.newFixture(ctx)
	defer func() { err = errors.Join(err, fx.close()) }()
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
		line, err := fx.measureRow(ctx, r)
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
		line, err := e.measure(ctx, fx)
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

// extra is a measurement that is not a comparison with the floor under load.
type extra struct {
	name    string
	measure func(context.Context, *fixture) (string, error)
}

// extras are measured after the rows of the table.
var extras = []extra{
	{"idle memory; start to listening (at most 45 MB, 0.3 s)", measureIdle},
	{"memory of an open stream (at most 135 kB)", measureOpenStreams},
	{"3,000 clients gone (must 1 s, goal 0.5 s)", measureDisconnects},
	{"CPU per answer beside open streams; memory after them", measureGrowth},
	{"memory after load with EVENTS_MAX_BYTES=" + memoryBound + " (idle: at most 382 MB)", measureMemory},
	{"throughput: callers: answers per second, processors of the service", measureThroughput},
	{"default limits: callers: answers per second, refused", measureDefaults},
}
