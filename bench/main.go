// Command bench measures what answerd adds to the waiting: its CPU per request beside that
// of the floor, which is the least that a net/http program can do for the same exchanges.
//
//	go run ./bench                 every row, some minutes
//	go run ./bench -row burst      the rows whose name has that in it
//	go run ./bench -quick          short slices: for a look, not for the table
//	go run ./bench -answerd FILE   a binary that is there, and not one built from here
//	go run ./bench -against FILE   another answerd in the floor's place, in 31 slices each
//
// Model, MCP server, floor and answerd are processes of their own, and the load comes from
// this one, so that what is counted is the service alone. Floor and answerd take turns in
// slices: a measuredService machine disturbs both. Every answer is checked whole, and every request
// to the model and the MCP server is counted; one too many, or too few, fails the run.
//
// docs/internals/performance.md says how to read what it prints.
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// roles are the services that this program can be when it is a child of itself.
var roles = map[string]func(args []string) error{
	"floor": serveFloor,
	"model": serveModel,
	"tools": serveTools,
}

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

// options says what is measured, and how long.
type options struct {
	row      string
	quick    bool
	answerd  string
	against  string
	env      []string
	profiles string
	work     string // a temporary directory
}

// slices is how many slices each of the two gets for a row, and how long each is. CPU time
// is counted in ticks of 10 ms, so a slice must not be much shorter.
func (o options) slices(r row) (n int, each time.Duration) {
	switch {
	case o.against != "" || r.tracing && !o.quick: // answerd against answerd: they differ by little
		return 31, 400 * time.Millisecond
	case o.quick:
		return 3, 400 * time.Millisecond
	}
	return 5, 700 * time.Millisecond
}
