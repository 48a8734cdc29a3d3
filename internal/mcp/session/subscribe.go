package session

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodListen = "subscriptions/listen"

	// maxListenTime bounds one subscriptions/listen stream.
	maxListenTime = 24 * time.Hour
	// subscribeGap is how long resources are gathered that one request then subscribes to.
	subscribeGap = time.Second
)

// calmStream is how long a subscription must have lasted for the next one not to wait longer than
// the one before.
const calmStream = 10 * time.Second

// subscribeChanges has the server notify us of changes: of its tools, and of the resources
// that are configured. It returns when ctx ends, which is when the session is no longer the
// current one, or when the server offers no notifications.
func (s *Session) subscribeChanges(ctx context.Context) {
	defer transport.Recover(s.pool.Logger, func(*transport.Failure) {}) // the session's calls continue
	stateless := s.Protocol() >= transport.StatelessVersion
	// A stream connection carries notifications at any time; over HTTP they need the
	// standalone stream.
	if s.resources != nil && !s.pool.OverHTTP && !stateless {
		s.setListening(true)
	}
	offered := s.capabilities().Resources
	canSubscribe := s.resources != nil && offered != nil && offered.Subscribe
	if stateless {
		s.listenLoop(ctx, canSubscribe)
	} else if canSubscribe {
		s.subscribeResources(ctx)
	}
}

// subscribeResources subscribes to resources one by one, as they are listed or read (before
// 2026-07-28).
func (s *Session) subscribeResources(ctx context.Context) {
	for n := 0; ; {
		for _, uri := range s.resources.wantedFrom(n) {
			n++
			_, failure := s.Do(ctx, nil, time.Now().Add(transport.NotifyTimeout), func(request *Request) (json.RawMessage, *transport.Failure) {
				if err := s.cs.Subscribe(request.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
					return nil, request.Failure(err)
				}
				return nil, nil
			})
			switch {
			case ctx.Err() != nil, failure != nil && failure.Lost, methodNotFound(failure):
				return
			case failure == nil:
				s.resources.setSubscribed(uri)
			}
			// A resource without a subscription is read from the server each time.
		}
		select {
		case <-ctx.Done():
			return
		case <-s.resources.wake:
		}
	}
}

// listenLoop keeps a subscriptions/listen stream open (2026-07-28 basic/utilities/
// subscriptions). It opens the stream again, with backoff, when the stream breaks, and when
// there are more resources to subscribe to.
func (s *Session) listenLoop(ctx context.Context, canSubscribe bool) {
	offered := s.capabilities()
	want := sdk.NotificationSubscriptions{
		ToolsListChanged:     offered.Tools != nil && offered.Tools.ListChanged,
		ResourcesListChanged: s.resources != nil && offered.Resources != nil && offered.Resources.ListChanged,
	}

	var moreWanted chan struct{} // nil, and so never ready, if there are no resources to subscribe to
	if canSubscribe {
		moreWanted = s.resources.wake
		select { // the resources are being listed: ask for all of them at once
		case <-moreWanted:
		case <-time.After(subscribeGap):
		case <-ctx.Done():
			return
		}
	}

	s.missed.Store(true) // what changes before the server acknowledges the first stream
	accepted := false    // a stream was acknowledged; then only one of several replicas does not have the method
	for failures := 0; ; {
		if canSubscribe {
			want.ResourceSubscriptions = s.resources.wantedFrom(0)
		}
		if !want.ToolsListChanged && !want.ResourcesListChanged && len(want.ResourceSubscriptions) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-moreWanted:
				continue
			}
		}
		opened := time.Now()
		interrupted, f := s.listenOnce(ctx, want, moreWanted)
		accepted = accepted || !s.missed.Load()
		s.setListening(false)
		switch {
		case ctx.Err() != nil, methodNotFound(f) && !accepted:
			return
		case f != nil && f.Lost:
			if s.pool.OverHTTP { // the end of another connection was noticed
				s.pool.handleLoss(s, f)
			}
			return
		case interrupted || time.Since(opened) > calmStream:
			failures = 0
		}
		wait := subscribeGap // so that resources that are read together share one request
		if !interrupted {
			wait = max(transport.Backoff(failures), f.RetryAfter())
			failures++
		}
		if !transport.Pause(ctx, wait) {
			return
		}
	}
}

// listenOnce opens the stream and returns when the stream ends. A value from moreWanted
// interrupts it.
func (s *Session) listenOnce(ctx context.Context, want sdk.NotificationSubscriptions, moreWanted <-chan struct{}) (interrupted bool, _ *transport.Failure) {
	// The deadline ends a stream whose connection is half open.
	request := NewRequest(ctx, s.pool.Life, time.Now().Add(maxListenTime), s)
	defer request.Finish()
	ended := make(chan struct{})
	var interrupter sync.WaitGroup
	interrupter.Go(func() {
		select {
		case <-moreWanted:
			interrupted = true
			request.Cancel(nil)
		case <-ended:
		}
	})
	// The response is the end of the stream.
	_, f := ask(request, methodListen, &sdk.SubscriptionsListenParams{Notifications: &want})
	close(ended)
	interrupter.Wait()
	if interrupted {
		f = nil
	}
	return interrupted, f
}

// methodNotFound reports whether f is the server's refusal of a method that it does not have.
func methodNotFound(f *transport.Failure) bool {
	if f == nil {
		return false
	}
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	return ok && e.Code == jsonrpc.CodeMethodNotFound
}
