package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// pipeConn is a message connection over a net.Pipe, with one message per line.
type pipeConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func (p *pipeConn) Read() ([]byte, error) {
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: "its pipe broke", Err: err}
	}
	return bytes.TrimSpace(line), nil
}

func (p *pipeConn) Write(data []byte) error {
	n, err := p.conn.Write(append(data, '\n'))
	if err != nil && n == 0 {
		return &transport.Failure{Kind: Unavailable, Public: "its pipe is closed", NotRun: true, Err: err}
	}
	return err
}

func (p *pipeConn) Close() error { return p.conn.Close() }

func (p *pipeConn) SetReadLimit(int) {}

// peers are the servers of the pipe types, by URL: each gets the other end of a new
// connection.
var peers sync.Map

func init() {
	dialers["pipe"] = dialPeers(0)
	dialers["pipe of a process"] = dialPeers(startTimeout)
}

func dialPeers(time time.Duration) func(config.Server, Options) (dialer, error) {
	return func(cfg config.Server, o Options) (dialer, error) {
		peer, _ := peers.Load(cfg.URL)
		var all sync.WaitGroup
		open := func(context.Context) (transport.MessageConn, error) {
			ours, theirs := net.Pipe()
			all.Go(func() { peer.(func(net.Conn))(theirs); _ = theirs.Close() })
			return &pipeConn{ours, bufio.NewReader(ours)}, nil
		}
		d := dialEndpoint(cfg, o, transport.NewStream(open, all.Wait, o.Logger), func() {})
		d.handshakeTimeout = time
		return d, nil
	}
}

// newPipedClient returns a client of one server at the other end of a pipe.
func newPipedClient(t *testing.T, o Options, cfg config.Server, peer func(net.Conn)) *Client {
	t.Helper()
	cfg.Name, cfg.URL = "a", t.Name()
	if cfg.Type == "" {
		cfg.Type = "pipe"
	}
	peers.Store(cfg.URL, peer)
	c := newClient(t, o, cfg)
	c.Tools(t.Context())
	return c
}

// scriptedPeer returns a scripted server of 2025-11-25. call gets each tools/call, and a function that writes
// a line.
func scriptedPeer(call func(m message, say func(string))) func(net.Conn) {
	return func(conn net.Conn) {
		say := func(s string) { _, _ = io.WriteString(conn, s+"\n") }
		in := bufio.NewScanner(conn)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			var m message
			if json.Unmarshal(in.Bytes(), &m) != nil {
				return
			}
			switch m.Method {
			case methodDiscover:
				say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, m.ID))
			case "initialize":
				say(resultFor(m, initializeResult))
			case "tools/list":
				say(resultFor(m, `{"tools":[{"name":"t","inputSchema":{"type":"object"}}],"ttlMs":60000}`))
			case "tools/call":
				call(m, say)
			}
		}
	}
}

func resultFor(m message, result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// count returns how often the log has text.
func (s *syncBuffer) count(text string) int { return strings.Count(s.String(), text) }
