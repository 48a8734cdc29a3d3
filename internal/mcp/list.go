package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of a server's list of tools (F21).
const (
	maxPages = 16
	maxTools = 512
	listTime = 15 * time.Second // for all pages
)

// statelessVersion is the first protocol version without sessions.
const statelessVersion = "2026-07-28"

// renewSession makes the next list come from the server: from 2026-07-28 on the SDK
// keeps lists for the server's ttlMs and has no way to be told otherwise, but a
// session costs one request there and ends nothing at the server. (Over a message
// transport the link keeps lists from the SDK; see link.answered.)
func (s *server) renewSession() {
	if cur := s.pool.current(); cur != nil {
		select {
		case <-cur.ready:
			if cur.cs != nil && cur.protocol() >= statelessVersion && s.cfg.Type == TypeHTTP {
				s.pool.drop(cur)
			}
		default:
		}
	}
}

// list asks for the server's tools, once more if the session turns out to be lost.
// It returns the session that gave them.
func (s *server) list() ([]Tool, *session, *failure) {
	deadline := time.Now().Add(handshakeTime + listTime)
	for try := 0; ; try++ {
		ctx, stop := context.WithDeadlineCause(s.c.life, deadline, errTimeout)
		used, f := s.pool.get(ctx)
		stop()
		if f != nil {
			return nil, nil, f
		}
		tools, f := s.pages(used, deadline)
		if f == nil {
			return tools, used, nil
		}
		if f.lost {
			s.pool.drop(used)
		}
		if !f.lost || try > 0 {
			return nil, nil, f
		}
	}
}

// pages collects the tools of all pages. What is wrong with one tool drops that tool
// and no other.
func (s *server) pages(used *session, deadline time.Time) ([]Tool, *failure) {
	var tools []Tool
	seen := map[string]bool{}
	cursors := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		raws, next, f := s.page(used, cursor, deadline)
		if f != nil {
			return nil, f
		}
		for _, raw := range raws {
			t, err := decodeTool(raw)
			switch {
			case err == nil && seen[t.Original]:
				err = errors.New("its name was listed before")
			case err == nil && len(tools) == maxTools:
				s.log.Warn("MCP tools left out", "bound", maxTools)
				return tools, nil
			}
			if err != nil {
				s.log.Warn("MCP tool left out", "tool", printable(t.Original, 80), "reason", err.Error())
				continue
			}
			seen[t.Original] = true
			t.Server = s.cfg.Name
			tools = append(tools, t)
		}
		if next == "" {
			return tools, nil
		}
		if cursors[next] {
			s.log.Warn("MCP tools listed in a circle", "tools", len(tools))
			return tools, nil
		}
		// A cursor is opaque: one that was used before can only lead round again.
		cursors[next] = true
		cursor = next
	}
	s.log.Warn("MCP tools left out", "pages", maxPages)
	return tools, nil
}

// page asks for one page.
func (s *server) page(used *session, cursor string, deadline time.Time) ([]json.RawMessage, string, *failure) {
	// Nobody's context but the client's own life: the supervisor asks for all.
	x := newExchange(context.Background(), s.c.life, deadline)
	defer x.finish()
	x.session = used
	// Fresh params each time: the SDK writes to them.
	res, err := used.cs.ListTools(x.ctx, &sdk.ListToolsParams{Cursor: cursor})
	if err == nil && x.received() == nil {
		// From the SDK's cache: a page of a list that then failed further on.
		raw, err := json.Marshal(res)
		if err != nil {
			return nil, "", badReply("its tools do not encode", err)
		}
		return decodePage(raw)
	}
	raw, f := x.outcome(s.c.life, err)
	if f != nil {
		if e, ok := errors.AsType[*jsonrpc.Error](f.err); ok && e.Code == jsonrpc.CodeMethodNotFound {
			return nil, "", nil // a server without tools
		}
		return nil, "", f
	}
	return decodePage(raw)
}

// decodePage splits a page into tools, without looking into them yet: a page of the
// SDK's types would be all or nothing.
func decodePage(raw json.RawMessage) ([]json.RawMessage, string, *failure) {
	var p struct {
		Tools      []json.RawMessage `json:"tools"`
		NextCursor string            `json:"nextCursor"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, "", badReply("its list of tools does not decode", fmt.Errorf("tools/list: %w", err))
	}
	return p.Tools, p.NextCursor, nil
}
