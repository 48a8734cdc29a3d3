package mcp

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
)

// recordingConn is a server's end of a pipe that records what it reads.
type recordingConn struct {
	net.Conn
	heard *syncBuffer
}

func (h recordingConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	_, _ = h.heard.Write(p[:n])
	return n, err
}

// F13: a server that doesn't read when a call is cancelled is told when it reads again, be
// it after the 5 s that the SDK gives to cancellations. In fake time.
func TestCancellationIsSentWhenTheServerReadsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard syncBuffer
		ids, read := make(chan string, 2), make(chan struct{})
		c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			scriptedPeer(func(m message, _ func(string)) { ids <- string(m.ID); <-read })(recordingConn{conn, &heard})
		})

		var all sync.WaitGroup
		for i := range 2 { // the second one is being written when the first is cancelled
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				_, err := c.Call(ctx, Call{Tool: "t"})
				mustFail(t, err)
			})
			synctest.Wait()
		}

		all.Wait()
		<-time.After(time.Minute)
		close(read)
		synctest.Wait()

		for range 2 {
			if want := `"requestId":` + <-ids; !strings.Contains(heard.String(), want+"}") {
				t.Errorf("the server did not hear %s:\n%s", want, heard.String())
			}
		}

		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
