package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

// sayings takes what a server says during one call into the log; while the run is
// suspended it waits. mcp calls it for one thing at a time, and not after the call.
type sayings struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

func (s *sayings) progress(ctx context.Context, p mcp.Progress) {
	s.append(ctx, event.ToolProgress{Call: s.call, Progress: p.Progress, Total: p.Total, Message: p.Message})
}

// log appends a log message, after one of our own where some before it were left out.
func (s *sayings) log(ctx context.Context, m mcp.LogMessage) {
	if m.Omitted > 0 {
		text, _ := json.Marshal(fmt.Sprintf("%d log messages were left out here.", m.Omitted)) // strings always marshal
		s.append(ctx, event.LogMessage{Call: s.call, Level: "warning", Logger: "answerd", Data: text})
	}
	if m.Data != nil {
		s.append(ctx, event.LogMessage{Call: s.call, Level: m.Level, Logger: m.Logger, Data: m.Data})
	}
}

func (s *sayings) append(ctx context.Context, b event.Body) {
	err := func() (err error) {
		defer recovered(&err) // the goroutine is mcp's
		return s.run.say(ctx, b)
	}()
	if err != nil && s.err == nil {
		s.err = err
	}
}
