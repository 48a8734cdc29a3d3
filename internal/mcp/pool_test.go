package mcp

import (
	"context"
	"testing"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A panic of connect, or of what follows the handshake (here: there is no session after it),
// fails the handshake. Callers learn of it, and the next one tries again.
func TestPoolReportsAPanicOfAHandshake(t *testing.T) {
	for name, connect := range map[string]func(context.Context) (*sdk.ClientSession, error){
		"connect":         func(context.Context) (*sdk.ClientSession, error) { panic("a bug") },
		"after handshake": func(context.Context) (*sdk.ClientSession, error) { return nil, nil },
	} {
		life, end := context.WithCancel(t.Context())
		p := newPool(poolOptions{life: life, log: quietLog(), handshakeTimeout: time.Minute, onConnected: func() {}, onLost: func(*transport.Failure) {}, connect: connect})
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		for range 2 {
			if _, f := p.getSession(ctx); f == nil || f.Kind != Unavailable || !f.NotRun || ctx.Err() != nil {
				t.Errorf("%s: got %+v, want %s, not run", name, f, Unavailable)
			}
		}
		stop()
		end()
		_ = p.closePool()
	}
}

// The session has no connection, so waiting for the end of it panics.
func TestPoolTreatsAPanicOfAWaitAsALostSession(t *testing.T) {
	var lost *transport.Failure
	stopped, connected := false, false
	p := newPool(poolOptions{life: t.Context(), log: quietLog(), onLost: func(f *transport.Failure) { lost = f }, onConnected: func() { connected = true }})
	p.current = &session{stopSubscribing: func() { stopped = true }}
	p.waitForEnd(p.current)
	p.work.Wait()
	if lost == nil || lost.Kind != Protocol {
		t.Errorf("got the loss %v, want %s", lost, Protocol)
	}
	if !stopped || !connected || p.currentSession() != nil {
		t.Errorf("got subscriptions stopped %t, supervisor woken %t, session %v, want true, true, nil", stopped, connected, p.currentSession())
	}
}
