// Package faults tests the whole process under the faults of
// docs/internals/faults.md, one test per fault, and further its drain, its leaks and a soak. It
// has tests only.
//
//	r := beginFault(t, "MCP refuses connections", "a tool_error; works again when it is back")
//	tool := newPeer(t, nil)
//	link := newProxy(t, tool.url)
//	s := startWithTool(t, link.url)
//	link.stop()
//	r.wantCallError(s, "unavailable")
//
// The tests start the built binary, so that signals, file descriptors and child processes are
// real. Its peers are scripted servers that misbehave, and proxies that break connections. At
// the end a table says what was injected, expected and seen: make faults.
package faults

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// binary is answerd, built once.
var binary string

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		os.Exit(childMain(os.Args[2], os.Args[3]))
	}
	if os.Getenv("FAULTS") == "" && os.Getenv("SOAK") == "" && os.Getenv("ABUSE") == "" {
		fmt.Println("skipped: these tests take minutes; make faults runs them")
		os.Exit(0)
	}
	os.Exit(buildAndRun(m.Run))
}

func buildAndRun(run func() int) int {
	dir, err := os.MkdirTemp("", "answerd-faults-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "answerd")
	build := exec.Command("go", "build", "-o", binary, "answerd/cmd/server")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return 1
	}
	code := run()
	printTable()
	return code
}

// faultRow is one line of the table.
type faultRow struct {
	number                   int
	injected, expected, seen string
	t                        *testing.T
	failed                   bool
}

var (
	tableMu sync.Mutex // guards table and its rows
	table   []*faultRow
)

// beginFault begins the parallel test of a fault, and adds its row to the table.
func beginFault(t *testing.T, injected, expected string) *faultRow {
	t.Helper()
	t.Parallel()
	number, _ := strconv.Atoi(t.Name()[len("TestF") : len("TestF")+2])
	r := &faultRow{number: number, injected: injected, expected: expected, t: t}
	tableMu.Lock()
	table = append(table, r)
	tableMu.Unlock()
	t.Cleanup(func() {
		tableMu.Lock()
		defer tableMu.Unlock()
		r.failed = t.Failed()
	})
	return r
}

// record adds what happened to the row of the table.
func (r *faultRow) record(format string, args ...any) {
	tableMu.Lock()
	defer tableMu.Unlock()
	if r.seen != "" {
		r.seen += "; "
	}
	r.seen += fmt.Sprintf(format, args...)
}

func printTable() {
	if len(table) == 0 {
		return
	}
	slices.SortStableFunc(table, func(a, b *faultRow) int { return cmp.Compare(a.number, b.number) })
	var out strings.Builder
	out.WriteString("| fault | injected | expected | seen |\n|---|---|---|---|\n")
	for _, r := range table {
		seen := r.seen
		if r.failed {
			seen = "**FAILED** " + seen
		}
		fmt.Fprintf(&out, "| F%d | %s | %s | %s |\n", r.number, r.injected, r.expected, seen)
	}
	fmt.Print(out.String())
}
