package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// recovered turns a panic in the function that defers it into a failure, which it
// hands to end. What a server sends is read on goroutines of the SDK's, of the
// supervisors and of nobody's call: a fault of ours in there must cost the request, or
// the session, and not the process with everybody's runs.
func recovered(log *slog.Logger, end func(*failure)) {
	v := recover()
	if v == nil {
		return
	}
	log.Error("panic over what an MCP server sent", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	end(&failure{kind: Protocol, public: "what it sent could not be dealt with"})
}

// survived calls f. A panic in it ends f and nothing else: what f belongs to goes on to its
// own end, which others wait for.
func survived(log *slog.Logger, f func()) {
	defer recovered(log, func(*failure) {})
	f()
}

// contained is f with a panic made its error.
func contained[Arg, Result any](log *slog.Logger, f func(context.Context, Arg) (Result, error)) func(context.Context, Arg) (Result, error) {
	return func(ctx context.Context, arg Arg) (res Result, err error) {
		defer recovered(log, func(f *failure) { err = f })
		return f(ctx, arg)
	}
}

// surely is dial with a panic made its error: calls of many runs wait for a handshake, and
// it is on the goroutine of none of them.
func surely(log *slog.Logger, dial func(context.Context) (*sdk.ClientSession, error)) func(context.Context) (*sdk.ClientSession, error) {
	return func(ctx context.Context) (cs *sdk.ClientSession, err error) {
		defer recovered(log, func(f *failure) { cs, err = nil, f })
		return dial(ctx)
	}
}
