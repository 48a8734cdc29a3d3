package mcp

import (
	"log/slog"

	"answerd/internal/mcp/transport"
)

// survived calls f. A panic in it ends f and nothing else: what f belongs to goes on to its
// own end, which others wait for.
func survived(log *slog.Logger, f func()) {
	defer transport.Recover(log, func(*transport.Failure) {})
	f()
}
