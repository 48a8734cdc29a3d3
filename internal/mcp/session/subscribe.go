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

	// maxListenTime is the time limit of one subscriptions/listen stream.
	maxListenTime = 24 * time.Hour
	// subscribeDelay is how long new resources are collected before one request subscribes to all of them.
	subscribeDelay = time.Second

	// minStreamTime is how long a stream must last to count as a success, which resets the backoff.
	minStreamTime = 10 * time.Second
)

// subscribeChanges keeps the session subscribed to changes of the server's tools and of the configured resources until
// ctx ends, which is when the session is no longer the pool's current one. It returns earlier if the server offers no
// subscriptions or the session is lost.
func (s *Session) subscribeChanges(ctx context.Context) {
	defer transport.Recover(s.pool.Logger, func(*transport.Failure) {}) // the session remains usable for calls
	stateless := s.Protocol() >= transport.StatelessVersion
	// Over HTTP, the connection calls setListening when it opens the standalone stream. Other connections always
	// carry notifications.
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

// subscribeResources sends resources/subscribe for each resource that the cache wants, and waits for more. It is for
// protocol versions before 2026-07-28. It returns when ctx ends, the session is lost, or the method is unknown.
func (s *Session) subscribeResources(ctx context.Context) {
	requested := 0 // how many wanted resources were requested
	for {
		for _, uri := range s.resources.wantedFrom(requested) {
			requested++
			deadline := time.Now().Add(transport.NotifyTimeout)
			_, failure := s.Do(ctx, nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
				if err := s.cs.Subscribe(request.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
					return nil, request.Failure(err)
				}
				return nil, nil
			})
			switch {
			case ctx.Err() != nil, failure != nil && failure.Lost, isMethodNotFound(failure):
				return
			case failure == nil:
				s.resources.setSubscribed(uri)
			}
			// After any other failure the resource has no subscription, so it is not cached.
		}
		select {
		case <-ctx.Done():
			return
		case <-s.resources.wake:
		}
	}
}

// listenLoop keeps a subscriptions/listen stream open (2026-07-28 basic/utilities/subscriptions). It opens a new
// stream, with backoff, when the stream has ended, and without backoff when there are more resources to subscribe to.
// canSubscribe says that the server offers subscriptions to resources. listenLoop returns when ctx ends, the session
// is lost, or the server does not have the method.
func (s *Session) listenLoop(ctx context.Context, canSubscribe bool) {
	var moreWanted chan struct{} // nil, and so never ready, if the server offers no subscriptions to resources
	if canSubscribe {
		moreWanted = s.resources.wake
		// Another goroutine is listing the resources. Waiting for that saves a second stream.
		select {
		case <-moreWanted:
		case <-time.After(subscribeDelay):
		case <-ctx.Done():
			return
		}
	}

	s.mayHaveMissed.Store(true) // changes are notified only after an acknowledgement
	// wasAcknowledged says that the server has acknowledged a stream. If the method is unknown after that, another
	// replica may have answered, so the loop continues.
	wasAcknowledged := false
	failures := 0 // streams in a row that failed or ended within minStreamTime
	for {
		want, ok := s.awaitSubscriptions(ctx, canSubscribe, moreWanted)
		if !ok {
			return
		}
		opened := time.Now()
		interrupted, failure := s.listenOnce(ctx, want, moreWanted)
		wasAcknowledged = wasAcknowledged || !s.mayHaveMissed.Load() // the acknowledgement resets mayHaveMissed
		s.setListening(false)
		switch {
		case ctx.Err() != nil, isMethodNotFound(failure) && !wasAcknowledged:
			return
		case failure != nil && failure.Lost:
			if s.pool.OverHTTP { // with other transports, waitForEnd handles the loss
				s.pool.handleLoss(s, failure)
			}
			return
		case interrupted || time.Since(opened) > minStreamTime:
			failures = 0
		}
		wait := subscribeDelay // collects resources that are read at about the same time
		if !interrupted {
			wait = max(transport.Backoff(failures), failure.RetryAfter()) // failure may be nil
			failures++
		}
		if !transport.Pause(ctx, wait) {
			return
		}
	}
}

// awaitSubscriptions returns the subscriptions that the server offers and the session wants. While these are none, it
// waits for a value from moreWanted. ok is false if ctx ends first. canSubscribe says that the server offers
// subscriptions to resources.
func (s *Session) awaitSubscriptions(
	ctx context.Context, canSubscribe bool, moreWanted <-chan struct{},
) (want sdk.NotificationSubscriptions, ok bool) {
	offered := s.capabilities()
	want.ToolsListChanged = offered.Tools != nil && offered.Tools.ListChanged
	want.ResourcesListChanged = s.resources != nil && offered.Resources != nil && offered.Resources.ListChanged
	for {
		if canSubscribe {
			want.ResourceSubscriptions = s.resources.wantedFrom(0)
		}
		if want.ToolsListChanged || want.ResourcesListChanged || len(want.ResourceSubscriptions) > 0 {
			return want, true
		}
		select {
		case <-ctx.Done():
			return want, false
		case <-moreWanted:
		}
	}
}

// listenOnce opens a stream with the subscriptions in want, and returns when the stream has ended: with nil if the
// server ended it, otherwise with the reason. A value from moreWanted also ends the stream; then interrupted is true
// and the failure is nil.
func (s *Session) listenOnce(
	ctx context.Context, want sdk.NotificationSubscriptions, moreWanted <-chan struct{},
) (interrupted bool, _ *transport.Failure) {
	// The deadline ends a stream whose connection has broken unnoticed.
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
	// The answer arrives when the stream ends.
	_, failure := callMethod(request, methodListen, &sdk.SubscriptionsListenParams{Notifications: &want})
	close(ended)
	interrupter.Wait()
	if interrupted {
		return true, nil
	}
	return false, failure
}

// isMethodNotFound reports whether failure is the JSON-RPC error for an unknown method. failure may be nil.
func isMethodNotFound(failure *transport.Failure) bool {
	if failure == nil {
		return false
	}
	rpcError, ok := errors.AsType[*jsonrpc.Error](failure.Err)
	return ok && rpcError.Code == jsonrpc.CodeMethodNotFound
}
