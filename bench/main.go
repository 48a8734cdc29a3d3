// Command bench measures the cost that answerd adds to an answer. It compares answerd's CPU time per
// request with that of the floor, which is the least that a net/http program can do for the same
// requests.
//
//	go run ./bench                 all rows; takes a quarter of an hour
//	go run ./bench -row burst      the rows whose name contains that
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
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

// roles has the services that this program runs as when it is its own child process.
var roles = map[string]func(args []string) error{
	"floor": serveFloor,
	"model": serveModel,
	"tools": serveTools,
	"nats":  serveNATS,
}

// run parses the arguments, builds answerd and measures; or it is one of the roles.
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

// options selects what is measured, and for how long.
type options struct {
	row      string
	quick    bool
	answerd  string
	against  string
	env      []string
	profiles string
	work     string // a temporary directory
}

// sliceCount returns how many slices each of the two services gets for a row, and how long a slice
// is. CPU time is counted in ticks of 10 ms, so a slice must not be much shorter.
func (o options) sliceCount(r row) (n int, each time.Duration) {
	switch {
	case o.against != "" || r.plain && !o.quick: // answerd with answerd: the difference is small
		return 31, 400 * time.Millisecond
	case o.quick:
		return 3, 400 * time.Millisecond
	}
	return 5, 700 * time.Millisecond
}
