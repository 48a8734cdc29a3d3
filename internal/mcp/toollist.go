package mcp

import (
	"cmp"
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

// listTime is the time limit for all pages of a server's list of tools.
const listTime = 15 * time.Second

// toolList is a server's list of tools as received.
type toolList struct {
	tools     []catalog.Tool
	ttl       time.Duration // the server's time to live for the list; 0 if it gave none
	omitted   int           // how many received tools were left out
	truncated string        // why not all pages were requested (session.ToolList.Cut); "" if they were
	// resourcesCut is why not all pages of resources were requested (session.CollectPages); "" if they were.
	resourcesCut string
}

// listTools requests the server's tools in a session of pool, which connects if needed. It tries once more if the
// session is lost. It also returns the session that answered. It ends early if the server's life ends.
func (s *server) listTools(pool *session.Pool) (list toolList, listed *session.Session, _ *transport.Failure) {
	deadline := time.Now().Add(pool.HandshakeTimeout + listTime)
	failure := useSession(s.life, pool, deadline, func(used *session.Session) (failure *transport.Failure) {
		listed = used
		if list, failure = s.collectTools(used, deadline); failure != nil {
			return failure
		}
		return s.addReadTool(&list, used)
	})
	return list, listed, failure
}

// useSession calls use with a session of pool, for which it waits until deadline or the end of ctx. If use finds that
// the session is lost, useSession drops the session and calls use once more with another one. It returns the failure of
// the last call, or the reason why there was no session.
func useSession(
	ctx context.Context, pool *session.Pool, deadline time.Time, use func(*session.Session) *transport.Failure,
) *transport.Failure {
	ctx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
	defer stop()
	for isRetry := false; ; isRetry = true {
		used, failure := pool.GetSession(ctx)
		if failure != nil {
			return failure
		}
		failure = use(used)
		if failure == nil || !failure.Lost {
			return failure
		}
		pool.DropSession(used)
		if isRetry {
			return failure
		}
	}
}

// collectTools requests all pages of the session's list of tools, until deadline, and returns the tools. It leaves out
// and logs tools that are not valid and tools whose name an earlier tool has. When the definitions exceed
// Options.MaxToolBytes, it leaves out all further tools. A list that was shortened is not a failure.
func (s *server) collectTools(used *session.Session, deadline time.Time) (toolList, *transport.Failure) {
	var list toolList
	listed := map[string]bool{} // keyed by the server's own name of the tool
	maxBytes := s.client.opts.MaxToolBytes
	remaining := maxBytes // negative: the tools received so far exceed maxBytes
	addTool := func(raw json.RawMessage) (wantsMore bool) {
		remaining -= len(raw)
		if remaining < 0 {
			list.omitted++
			return false
		}
		tool, err := catalog.Decode(raw)
		if err == nil && listed[tool.Original] {
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
	}
	pages, failure := used.ListTools(deadline, maxBytes, addTool)
	list.ttl, list.truncated = pages.TTL, pages.Cut
	if remaining < 0 || list.truncated != "" {
		s.log.Warn("MCP tools left out", "kept", len(list.tools), "omitted", list.omitted, "more", list.truncated != "",
			"reason", "the list "+cmp.Or(list.truncated, session.TooLarge), "max_bytes", maxBytes, help.ToolLists.Attr())
	}
	return list, failure
}
