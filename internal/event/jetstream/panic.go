package jetstream

import (
	"fmt"
	"runtime/debug"
)

// survived, deferred, ends a panic: it costs what the function was about, once. Nobody's
// run is on the goroutines that keep the log, and all runs would go with the process. News
// that is lost that way is found by sweep, as are lost messages.
func (l *Log) survived(doing string) {
	v := recover()
	if v == nil {
		return
	}
	l.logger.Error("panic in the event log", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}
