package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// listTime bounds the time for all pages of a server's list of tools.
const listTime = 15 * time.Second

// toolList holds a server's tools and their time to live; 0 if the server gave none.
type toolList struct {
	tools []catalog.Tool
	ttl   time.Duration
	// omitted counts the tools that were left out. With cut, the server has even more, which were not
	// requested.
	omitted int
	cut     bool
}

// listTools requests the server's tools in a session of p, and once more if the session is lost
// meanwhile. It also returns the session that answered.
func (s *server) listTools(p *session.Pool) (toolList, *session.Session, *transport.Failure) {
	deadline := time.Now().Add(p.HandshakeTimeout + listTime)
	for try := 0; ; try++ {
		ctx, stop := context.WithDeadlineCause(s.life, deadline, transport.ErrTimeout)
		used, f := p.GetSession(ctx)
		stop()
		if f != nil {
			return toolList{}, nil, f
		}
		list, f := s.collectTools(used, deadline)
		if f == nil {
			list.tools, f = s.withResources(list.tools, used)
		}
		if f == nil {
			return list, used, nil
		}
		if f.Lost {
			p.DropSession(used)
		}
		if !f.Lost || try > 0 {
			return toolList{}, nil, f
		}
	}
}

// collectTools returns the tools of all pages. It leaves out tools that are not valid, and those from
// which on the definitions have more than Options.MaxToolBytes, and keeps the others.
func (s *server) collectTools(used *session.Session, deadline time.Time) (toolList, *transport.Failure) {
	var list toolList
	listed := map[string]bool{}
	left := s.c.opts.MaxToolBytes
	pages, f := used.ListTools(deadline, left, func(raw json.RawMessage) bool {
		if left -= len(raw); left < 0 {
			list.omitted++
			return false
		}
		t, err := catalog.Decode(raw)
		switch {
		case err == nil && listed[t.Original]:
			err = errors.New("an earlier tool has the same name")
		}
		if err != nil {
			s.log.Warn("MCP tool left out", "tool", wire.Printable(t.Original, 80), "reason", err.Error(), help.ToolLists.Attr())
			list.omitted++
			return true
		}
		listed[t.Original] = true
		t.Server = s.cfg.Name
		list.tools = append(list.tools, t)
		return true
	})
	list.ttl, list.cut = pages.TTL, pages.Cut
	if left < 0 || list.cut {
		s.log.Warn("MCP tools left out", "kept", len(list.tools), "omitted", list.omitted, "more", list.cut, "max_bytes", s.c.opts.MaxToolBytes, help.ToolLists.Attr())
	}
	return list, f
}
