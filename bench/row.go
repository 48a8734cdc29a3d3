package main

import "time"

// row is one line of the table: a kind of question that the floor and answerd answer.
type row struct {
	name    string
	must    float64 // the highest permitted ratio to the floor; 0 for none
	goal    float64 // the ratio that is aimed at
	callers int     // questions at a time
	stream  bool
	newer   bool // the MCP server uses protocol 2026-07-28
	traced  bool
	latency bool   // compare the latency instead of the CPU time
	log     string // where events are stored: "file" or "nats"; "" means in memory
	plain   bool   // compare with answerd without tracing and with its log in memory, instead of the floor
	script
}

// rows is the table in docs/internals/performance.md.
var rows = []row{
	{name: "answer, no tool", must: 3, goal: 1.8, callers: 16, script: script{Tokens: 64, Tools: 10}},
	{name: "answer, 1 call", must: 3, goal: 2.2, callers: 16, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1 call, 2026-07-28", must: 3, goal: 2.2, callers: 16, newer: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1 call, traced", callers: 16, traced: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1 call, traced, × untraced", must: 1.1, callers: 16, traced: true, plain: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 3 rounds of 4 calls", must: 4, goal: 3, callers: 16, script: script{Tokens: 64, Rounds: 3, Calls: 4, Result: 1000, Tools: 10}},
	{name: "answer, history of 16 × 4 kB", must: 4, goal: 2.5, callers: 16, script: script{Tokens: 64, Tools: 10, History: 16}},
	{name: "answer, result of 100 kB", must: 2.5, goal: 1.5, callers: 16, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 100_000, Tools: 10}},
	{name: "answer, result of 1 MB", must: 3, goal: 1.8, callers: 8, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1_000_000, Tools: 10}},
	{name: "stream, 1 call", must: 4, goal: 3, callers: 16, stream: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "stream, burst of 1,000 tokens", must: 8, goal: 4, callers: 16, stream: true, script: script{Tokens: 1000, Tools: 10}},
	{name: "stream, 400 tokens one by one", must: 1.8, goal: 1.3, callers: 16, stream: true, script: script{Tokens: 400, Tools: 10, Each: 1}},
	{name: "stream, 100 readers, 10 ms a token", must: 1.8, goal: 1.3, callers: 100, stream: true, script: script{Tokens: 100, Tools: 10, Pace: 10}},
	{name: "answer, 100 tools", must: 3, goal: 2, callers: 16, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 100}},
	{name: "answer, 1000 tools", must: 2, goal: 1.4, callers: 16, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 1000}},
	{name: "answer, one at a time", must: 2, goal: 1.3, callers: 1, latency: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "stream, one at a time", must: 2, goal: 1.3, callers: 1, latency: true, stream: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1 call, file:, × in memory", must: 1.8, goal: 1.3, callers: 16, log: "file", plain: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "stream, 1 call, file:, × in memory", must: 1.8, goal: 1.3, callers: 16, stream: true, log: "file", plain: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1 call, nats:, × in memory", must: 1.8, callers: 16, log: "nats", plain: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "stream, 1 call, nats:, × in memory", must: 1.8, callers: 16, stream: true, log: "nats", plain: true, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{name: "answer, 1024 at a time", must: 2.5, goal: 1.5, callers: 1024, script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10, Delay: 200}},
}

// setting holds what the processes of a row are configured with. Rows with the same setting share their processes.
type setting struct {
	tools         int
	newer, traced bool
	log           string
	apart         bool // set for plain rows: the heaps of the two answerds that they compare must be equally old
}

// setting returns the row's setting.
func (r row) setting() setting { return setting{r.Tools, r.newer, r.traced, r.log, r.plain} }

// sliceResult holds the measurements of one service in one slice.
type sliceResult struct {
	cpu     time.Duration // per answer
	answers int
	timings []timing
}
