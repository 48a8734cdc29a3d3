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

// listTools requests the server's tools in a session of pool, and once more if the session is lost
// meanwhile. It also returns the session that answered.
func (s *server) listTools(pool *session.Pool) (toolList, *session.Session, *transport.Failure) {
	deadline := time.Now().Add(pool.HandshakeTimeout + listTime)
	for try := 0; ; try++ {
		ctx, stop := context.WithDeadlineCause(s.life, deadline, transport.ErrTimeout)
		used, failure := pool.GetSession(ctx)
		stop()
		if failure != nil {
			return toolList{}, nil, failure
		}
		list, failure := s.collectTools(used, deadline)
		if failure == nil {
			list.tools, failure = s.withResources(list.tools, used)
		}
		if failure == nil {
			return list, used, nil
		}
		if failure.Lost {
			pool.DropSession(used)
		}
		if !failure.Lost || try > 0 {
			return toolList{}, nil, failure
		}
	}
}

// collectTools returns the tools of all pages. It leaves out tools that are not valid, and those from
// which on the definitions have more than Options.MaxToolBytes, and keeps the others.
func (s *server) collectTools(used *session.Session, deadline time.Time) (toolList, *transport.Failure) {
	var list toolList
	listed := map[string]bool{}
	left := s.c.opts.MaxToolBytes
	pages, failure := used.ListTools(deadline, left, func(raw json.RawMessage) bool {
		left -= len(raw)
		if left < 0 {
			list.omitted++
			return false
		}
		tool, err := catalog.Decode(raw)
		switch {
		case err == nil && listed[tool.Original]:
			err = errors.New("an earlier tool has the same name")
		}
		if err != nil {
			s.log.Warn("MCP tool left out", "tool", wire.Printable(tool.Original, 80), "reason", err.Error(), help.ToolLists.Attr())
			list.omitted++
			return true
		}
		listed[tool.Original] = true
		tool.Server = s.cfg.Name
		list.tools = append(list.tools, tool)
		return true
	})
	list.ttl, list.cut = pages.TTL, pages.Cut
	if left < 0 || list.cut {
		s.log.Warn("MCP tools left out", "kept", len(list.tools), "omitted", list.omitted, "more", list.cut,
			"max_bytes", s.c.opts.MaxToolBytes, help.ToolLists.Attr())
	}
	return list, failure
}
