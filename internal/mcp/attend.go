package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodListen       = "subscriptions/listen"
	methodAcknowledged = "notifications/subscriptions/acknowledged"
)

// attend makes the server tell us in a session what it offers to tell: that its tools
// have changed, and the resources that we offer. It returns when that session is the
// current one no more, which ends ctx, or when there is nothing to be told.
func (s *server) attend(ctx context.Context, used *session) {
	defer transport.Recover(s.log, func(*transport.Failure) {}) // the session's calls go on
	r := used.cs.InitializeResult()
	if r == nil || r.Capabilities == nil {
		return
	}
	// Over a connection what the server says comes by itself; over HTTP see standing.
	if used.shelf != nil && s.cfg.Type != config.TypeHTTP && used.protocol() < transport.StatelessVersion {
		used.hears(true)
	}
	canWatch := used.shelf != nil && r.Capabilities.Resources != nil && r.Capabilities.Resources.Subscribe
	if used.protocol() >= transport.StatelessVersion {
		s.listenOn(ctx, used, r.Capabilities, canWatch)
	} else if canWatch {
		s.subscribe(ctx, used)
	}
}

// subscribe subscribes to resources one by one, as they come up (before 2026-07-28).
func (s *server) subscribe(ctx context.Context, used *session) {
	for n := 0; ; {
		for _, uri := range used.shelf.wants(n) {
			n++
			_, f := s.request(ctx, used, nil, time.Now().Add(sideTime), func(x *exchange) (json.RawMessage, *transport.Failure) {
				if err := used.cs.Subscribe(x.ctx, &sdk.SubscribeParams{URI: uri}); err != nil {
					return nil, x.failure(err)
				}
				return nil, nil
			})
			switch {
			case ctx.Err() != nil, f != nil && f.Lost, noSuchMethod(f):
				return
			case f == nil:
				used.shelf.watch(uri)
			}
			// One that the server doesn't let us watch is read anew each time.
		}
		select {
		case <-ctx.Done():
			return
		case <-used.shelf.wake:
		}
	}
}

// listenOn keeps a subscriptions/listen stream open (2026-07-28 basic/utilities/
// subscriptions), and opens it again when it breaks, with backoff, or when there is
// more to be told.
func (s *server) listenOn(ctx context.Context, used *session, caps *sdk.ServerCapabilities, canWatch bool) {
	want := sdk.NotificationSubscriptions{
		ToolsListChanged:     caps.Tools != nil && caps.Tools.ListChanged,
		ResourcesListChanged: used.shelf != nil && caps.Resources != nil && caps.Resources.ListChanged,
	}
	var wake chan struct{}
	if canWatch {
		wake = used.shelf.wake
	}
	if canWatch {
		select { // for the list of them, which is being asked for
		case <-wake:
		case <-time.After(renewalGap):
		case <-ctx.Done():
			return
		}
	}
	for failures := 0; ; {
		if canWatch {
			want.ResourceSubscriptions = used.shelf.wants(0)
		}
		if !want.ToolsListChanged && !want.ResourcesListChanged && len(want.ResourceSubscriptions) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-wake: // nil, and so never, where there is nothing to wait for
				continue
			}
		}
		began := time.Now()
		more, f := s.listenOnce(ctx, used, want, wake)
		used.hears(false)
		switch {
		case ctx.Err() != nil, f != nil && f.Lost, noSuchMethod(f):
			return
		case more || time.Since(began) > calmStream:
			failures = 0
		}
		wait := renewalGap // so that what comes up together is asked for together
		if !more {
			wait = transport.Backoff(failures)
			failures++
		}
		if !transport.Pause(ctx, wait) {
			return
		}
	}
}

// listenOnce opens the stream, and returns when it is over, or when there is more to
// listen to.
func (s *server) listenOnce(ctx context.Context, used *session, want sdk.NotificationSubscriptions, wake <-chan struct{}) (more bool, _ *transport.Failure) {
	// The bound is so that a stream which is only half dead ends some time.
	x := newExchange(ctx, s.life, time.Now().Add(config.MaxTimeout))
	defer x.finish()
	x.session = used
	over := make(chan struct{})
	var woken sync.WaitGroup
	woken.Go(func() {
		select {
		case <-wake: // nil, and so never, where there is nothing to wait for
			more = true
			x.cancel(nil)
		case <-over:
		}
	})
	// The answer is the end of the stream.
	_, f := ask(x, methodListen, &sdk.SubscriptionsListenParams{Notifications: &want})
	close(over)
	woken.Wait()
	if more {
		f = nil
	}
	return more, f
}

// noSuchMethod reports whether the server doesn't know what it was asked for.
func noSuchMethod(f *transport.Failure) bool {
	if f == nil {
		return false
	}
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	return ok && e.Code == jsonrpc.CodeMethodNotFound
}
