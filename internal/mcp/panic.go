package mcp

import (
	"log/slog"

	"answerd/internal/mcp/transport"
)

// recoverFunc calls f. A panic in it ends f and nothing else: what f belongs to goes on to its
// own end, which others wait for.
func recoverFunc(log *slog.Logger, f func()) {
	defer transport.Recover(log, func(*transport.Failure) {})
	f()
}
