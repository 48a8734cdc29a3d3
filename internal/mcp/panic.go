package mcp

import (
	"context"
	"log/slog"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// survived calls f. A panic in it ends f and nothing else: what f belongs to goes on to its
// own end, which others wait for.
func survived(log *slog.Logger, f func()) {
	defer transport.Recover(log, func(*transport.Failure) {})
	f()
}

// contained is f with a panic made its error.
func contained[Arg, Result any](log *slog.Logger, f func(context.Context, Arg) (Result, error)) func(context.Context, Arg) (Result, error) {
	return func(ctx context.Context, arg Arg) (res Result, err error) {
		defer transport.Recover(log, func(f *transport.Failure) { err = f })
		return f(ctx, arg)
	}
}

// surely is dial with a panic made its error: calls of many runs wait for a handshake, and
// it is on the goroutine of none of them.
func surely(log *slog.Logger, dial func(context.Context) (*sdk.ClientSession, error)) func(context.Context) (*sdk.ClientSession, error) {
	return func(ctx context.Context) (cs *sdk.ClientSession, err error) {
		defer transport.Recover(log, func(f *transport.Failure) { cs, err = nil, f })
		return dial(ctx)
	}
}
