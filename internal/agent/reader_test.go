package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/mcp/config"
)

// remoteReaderLog is a log that says when it is asked for readers in other processes, and has none when the test
// lets it answer.
type remoteReaderLog struct {
	event.Log
	asked, answer chan struct{}
}

func (l remoteReaderLog) HasRemoteReader(context.Context, string) bool {
	l.asked <- struct{}{}
	<-l.answer
	return false
}

// The log may need seconds to find out whether another process has readers. A reader that comes and leaves
// meanwhile starts a new grace period.
func TestReaderThatLeavesAtTheEndOfAGracePeriodStartsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 30 * time.Second
		tools := memoryServer{}.client(t, config.Server{Name: "m"})
		log := remoteReaderLog{newMemoryLog(), make(chan struct{}, 2), make(chan struct{})}
		a, err := agent.New(agent.Options{
			Model: slowModel{time.Hour, time.Hour}, Tools: tools, Log: log, Durable: true, DefaultModel: "scripted", DisconnectGrace: grace,
		})
		if err != nil {
			t.Fatal(err)
		}

		h := &agenttest.Fixture{Agent: a}
		run := h.StartRun(t, agent.Request{}).ID
		h.OpenReader(run).Close()
		<-log.asked
		h.OpenReader(run).Close()
		left := time.Now()
		close(log.answer)
		<-time.After(grace - time.Second)
		if r, err := log.Run(t.Context(), run); err != nil || r.Status() != event.StatusRunning {
			t.Errorf("status %s, %v, %s after the last reader left, want %s", r.Status(), err, time.Since(left), event.StatusRunning)
		}
		end := agenttest.TerminalEvent[event.Cancelled](t, h.Events(t, run))
		if took := time.Since(left); end.Reason != "abandoned" || took != grace {
			t.Errorf("end %+v after %s, want Reason abandoned after %s", end, took, grace)
		}
		drainAtOnce(h)
		_ = tools.Close()
	})
}
