package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of a server's list of tools (F21).
const (
	maxPages = 16
	maxTools = 512
	listTime = 15 * time.Second // for all pages
)

// toolList is a server's tools and how long they hold, as far as the server said; 0
// where it didn't.
type toolList struct {
	tools []Tool
	ttl   time.Duration
}

// list asks for the server's tools in a session of p, once more if that turns out to
// be lost. It returns the session that gave them.
func (s *server) list(p *pool) (toolList, *session, *transport.Failure) {
	deadline := time.Now().Add(p.time + listTime)
	for try := 0; ; try++ {
		ctx, stop := context.WithDeadlineCause(s.life, deadline, transport.ErrTimeout)
		used, f := p.get(ctx)
		stop()
		if f != nil {
			return toolList{}, nil, f
		}
		l, f := s.pages(used, deadline)
		if f == nil {
			l.tools, f = s.withResources(l.tools, used)
		}
		if f == nil {
			return l, used, nil
		}
		if f.Lost {
			p.drop(used)
		}
		if !f.Lost || try > 0 {
			return toolList{}, nil, f
		}
	}
}

// pages collects the tools of all pages. What is wrong with one tool drops that tool
// and no other.
func (s *server) pages(used *session, deadline time.Time) (toolList, *transport.Failure) {
	var l toolList
	seen := map[string]bool{}
	cursors := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		p, f := s.page(used, cursor, deadline)
		if f != nil {
			return toolList{}, f
		}
		// A list is as old as its oldest page.
		if ttl := p.life(used); ttl > 0 && (l.ttl == 0 || ttl < l.ttl) {
			l.ttl = ttl
		}
		for _, raw := range p.Tools {
			t, err := decodeTool(raw)
			switch {
			case err == nil && seen[t.Original]:
				err = errors.New("its name was listed before")
			case err == nil && len(l.tools) == maxTools:
				s.log.Warn("MCP tools left out", "bound", maxTools)
				return l, nil
			}
			if err != nil {
				s.log.Warn("MCP tool left out", "tool", wire.Printable(t.Original, 80), "reason", err.Error())
				continue
			}
			seen[t.Original] = true
			t.Server = s.cfg.Name
			l.tools = append(l.tools, t)
		}
		if p.NextCursor == "" {
			return l, nil
		}
		if cursors[p.NextCursor] {
			s.log.Warn("MCP tools listed in a circle", "tools", len(l.tools))
			return l, nil
		}
		// A cursor is opaque: one that was used before can only lead round again.
		cursors[p.NextCursor] = true
		cursor = p.NextCursor
	}
	s.log.Warn("MCP tools left out", "pages", maxPages)
	return l, nil
}

// page asks for one page.
func (s *server) page(used *session, cursor string, deadline time.Time) (toolPage, *transport.Failure) {
	// Nobody's context but the server's own life: the supervisor asks for all.
	x := newExchange(context.Background(), s.life, deadline)
	defer x.finish()
	x.session = used
	raw, f := ask(x, "tools/list", &sdk.ListToolsParams{Cursor: cursor})
	if f != nil {
		if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok && e.Code == jsonrpc.CodeMethodNotFound {
			return toolPage{}, nil // a server without tools
		}
		if f.Kind == TooLarge {
			f = &transport.Failure{Kind: TooLarge, Public: fmt.Sprintf("a page of its list of tools is larger than %d bytes", maxBody), Err: f}
		}
		return toolPage{}, f
	}
	return decodePage(raw)
}

// toolPage is one page of a list of tools, without a look into them yet: a page of
// the SDK's types would be all or nothing.
type toolPage struct {
	Tools      []json.RawMessage `json:"tools"`
	NextCursor string            `json:"nextCursor"`
	ttl
}

// ttl is what a result says of itself (2026-07-28).
type ttl struct {
	ResultType string          `json:"resultType"`
	TTLMs      json.RawMessage `json:"ttlMs"` // of a bad one the rest is kept
}

// life is how long the result holds, 0 if its server didn't say. Before 2026-07-28 a
// ttlMs has no meaning.
func (p *ttl) life(used *session) time.Duration {
	ms, err := strconv.ParseFloat(string(p.TTLMs), 64)
	if err != nil || ms <= 0 || used.protocol() < transport.StatelessVersion {
		return 0
	}
	return time.Duration(min(ms, float64(maxListLife/time.Millisecond))) * time.Millisecond
}

func decodePage(raw json.RawMessage) (toolPage, *transport.Failure) {
	var p toolPage
	if err := json.Unmarshal(raw, &p); err != nil {
		return toolPage{}, transport.BadReply("its list of tools does not decode", fmt.Errorf("tools/list: %w", err))
	}
	// F21: a result of another type is no list, although it may look like an empty one.
	if p.ResultType != "" && p.ResultType != "complete" {
		return toolPage{}, transport.BadReply(fmt.Sprintf("a list of tools of type %.40q", p.ResultType), nil)
	}
	return p, nil
}
