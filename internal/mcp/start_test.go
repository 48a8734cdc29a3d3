package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// A process that starts slowly, such as one that npx or uvx fetches first, is not killed for that. It is not asked for
// another protocol either, because a server of the Python SDK 2 refuses initialize once it was asked to discover.
// Questions do not wait for it. The test uses fake time.
func TestProcessHasTimeToStart(t *testing.T) {
	if d, err := dialStdio(config.Server{Name: "a", Command: "x"}, Options{Logger: quietLog()}); err != nil || d.handshakeTimeout != startTimeout {
		t.Fatalf("ready after %s, %v, want %v and no error", d.handshakeTimeout, err, startTimeout)
	}
	const up = 25 * time.Second
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := newPipedClient(t, Options{StartWait: 3 * time.Second}, config.Server{Type: "pipe of a process"}, slowDiscoverPeer(up))
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

// A process that comes up so late that initialize reaches it as well refuses that. Its successor has the whole
// time of a handshake for server/discover. A successor that does not know server/discover, and stays silent, is
// asked for initialize in the handshake after that. In fake time.
func TestProcessThatComesUpLateIsNotAskedForInitializeTheNextTime(t *testing.T) {
	for later, want := range map[string]string{"the same": transport.StatelessVersion, "an older one": session.LastInitialize} {
		synctest.Test(t, func(t *testing.T) {
			var processes atomic.Int64
			c := newPipedClient(t, Options{StartWait: time.Second}, config.Server{Type: "pipe of a process"}, func(conn net.Conn) {
				if processes.Add(1) > 1 && later == "an older one" {
					answerInitializeOnly(conn)
					return
				}
				slowDiscoverPeer(45 * time.Second)(conn)
			})
			<-time.After(4 * time.Minute) // fake time: the handshakes, and the pauses between them
			synctest.Wait()
			if st := c.Servers()[0]; st.State != Connected || st.Protocol != want {
				t.Errorf("then %s: server status %+v, want State Connected, Protocol %s", later, st, want)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// answerInitializeOnly is a server of 2025-11-25 that does not answer methods that it does not know.
func answerInitializeOnly(conn net.Conn) {
	for in := bufio.NewScanner(conn); in.Scan(); {
		var m message
		switch _ = json.Unmarshal(in.Bytes(), &m); m.Method {
		case methodInitialize:
			fmt.Fprintln(conn, resultFor(m, initializeResult))
		case "tools/list":
			fmt.Fprintln(conn, resultFor(m, toolsResult))
		}
	}
}

// A process that ends before its first request is reported as ended, not as a lost session.
func TestEndBeforeTheHandshakeIsItsReason(t *testing.T) {
	c := newPipedClient(t, Options{}, config.Server{}, func(net.Conn) {})
	if st := c.Servers()[0]; st.State != Failed || !strings.HasPrefix(st.Reason, "its pipe ") {
		t.Errorf(`server status %+v, want State Failed, Reason starting with "its pipe "`, st)
	}
}

// slowDiscoverPeer returns a server of 2026-07-28 that answers after that time, and then knows no
// initialize.
func slowDiscoverPeer(after time.Duration) func(net.Conn) {
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
					fmt.Fprintln(conn, resultFor(m, discoverResult))
				})
			case "initialize":
				fmt.Fprintf(conn, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"too late"}}`+"\n", m.ID)
			case "tools/list":
				fmt.Fprintln(conn, resultFor(m, `{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}`))
			}
		}
	}
}
