package session

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
		p := New(Options{Life: life, Logger: discardLog, HandshakeTimeout: time.Minute, OnConnected: func() {}, OnLost: func(*transport.Failure) {}, Connect: connect})
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		for range 2 {
			if _, f := p.GetSession(ctx); f == nil || f.Kind != transport.Unavailable || !f.NotRun || ctx.Err() != nil {
				t.Errorf("%s: got %+v, want %s, not run", name, f, transport.Unavailable)
			}
		}
		stop()
		end()
		_ = p.Close()
	}
}

// The session has no connection, so waiting for the end of it panics.
func TestPoolTreatsAPanicOfAWaitAsALostSession(t *testing.T) {
	var lost *transport.Failure
	stopped := false
	p := New(Options{Life: t.Context(), Logger: discardLog, OnLost: func(f *transport.Failure) { lost = f }})
	p.current = &Session{stopSubscribing: func() { stopped = true }}
	p.waitForEnd(p.current)
	p.work.Wait()
	if lost == nil || lost.Kind != transport.Protocol {
		t.Errorf("got the loss %v, want %s", lost, transport.Protocol)
	}
	if !stopped || p.CurrentSession() != nil {
		t.Errorf("got subscriptions stopped %t, session %v, want true, nil", stopped, p.CurrentSession())
	}
}
