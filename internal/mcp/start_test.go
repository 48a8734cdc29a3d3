package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// A process that takes its time to come up, such as one that npx or uvx fetches first, is
// neither killed for it nor asked for another protocol: a server of the Python SDK 2
// refuses initialize once it was asked to discover. Questions don't wait for it. In fake
// time.
func TestProcessHasTimeToComeUp(t *testing.T) {
	if d, err := dialStdio(config.Server{Name: "a", Command: "x"}, Options{Logger: quietLog()}); err != nil || d.time != startTimeout {
		t.Fatalf("ready after %s, %v, want %v and no error", d.time, err, startTimeout)
	}
	const up = 25 * time.Second
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := piped(t, Options{StartWait: 3 * time.Second}, config.Server{Type: "pipe of a process"}, slowToDiscover(up))
		if d := time.Since(begin); d != 3*time.Second || c.Ready() {
			t.Errorf("waited %s, ready %t, want 3 s, false", d, c.Ready())
		}
		<-time.After(session.HandshakeTimeout) // fake time
		begin = time.Now()
		if n := len(c.Tools(t.Context())); n != 0 || time.Since(begin) != 0 || !c.Ready() {
			t.Errorf("%d tools after %s more, ready %t, want 0 at once, true", n, time.Since(begin), c.Ready())
		}
		<-time.After(up) // fake time
		synctest.Wait()
		if st := c.Servers()[0]; st.State != Connected || st.Protocol != transport.StatelessVersion || st.Tools != 1 {
			t.Errorf("server status %+v, want State Connected, Protocol StatelessVersion, Tools 1", st)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A process that ends before its first request is reported as ended, not as a lost session.
func TestEndBeforeTheHandshakeIsItsReason(t *testing.T) {
	c := piped(t, Options{}, config.Server{}, func(net.Conn) {})
	if st := c.Servers()[0]; st.State != Failed || !strings.HasPrefix(st.Reason, "its pipe ") {
		t.Errorf(`server status %+v, want State Failed, Reason starting with "its pipe "`, st)
	}
}

// slowToDiscover is a server of 2026-07-28 that answers after that time, and then knows no
// initialize.
func slowToDiscover(after time.Duration) func(net.Conn) {
	return func(conn net.Conn) {
		in := bufio.NewScanner(conn)
		for in.Scan() {
			var m message
			if json.Unmarshal(in.Bytes(), &m) != nil {
				return
			}
			switch m.Method {
			case methodDiscover:
				time.AfterFunc(after, func() {
					fmt.Fprintln(conn, answerTo(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`))
				})
			case "initialize":
				fmt.Fprintf(conn, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"too late"}}`+"\n", m.ID)
			case "tools/list":
				fmt.Fprintln(conn, answerTo(m, `{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}`))
			}
		}
	}
}
