package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/values"
)

// A server that is down after a restart of answerd must keep the names of its tools: a rule, an approval or a run in
// the log may refer to one of them, so a tool of another server must not get the name in between. So the names that
// each server listed last are stored in Options.ToolNames, and are reserved when a process starts.

const (
	toolNamesTTL     = 365 * 24 * time.Hour // renewed by each process that lists the tools
	toolNamesTimeout = 3 * time.Second      // for reading all names at a start, and for storing one list
	toolNamesTries   = 3                    // attempts to store a list while other processes store theirs
)

// toolNamesKey returns the key of the stored names of server's tools.
func toolNamesKey(server string) values.Key { return values.NewKey("tool names", server) }

// expectToolNames makes the catalog reserve the names that servers listed in earlier processes. It reads the names of
// all enabled servers concurrently, except those that it has already read. It takes at most toolNamesTimeout. It only
// logs an error, because servers must be able to connect without the store.
func (c *Client) expectToolNames(servers []config.Server) {
	if c.opts.ToolNames == nil {
		return
	}
	ctx, stop := context.WithTimeout(c.life, toolNamesTimeout)
	defer stop()
	var reads sync.WaitGroup
	for _, s := range servers {
		if s.Disabled || c.catalog.IsExpected(s.Name) {
			continue
		}
		reads.Go(func() {
			names, _, err := c.loadToolNames(ctx, s.Name)
			if err != nil {
				c.log.Warn("the names of an MCP server's tools cannot be read, so other servers may get them until it is connected",
					"mcp_server", s.Name, "error", err)
				return
			}
			c.catalog.ExpectTools(s.Name, names)
		})
	}
	reads.Wait()
}

// loadToolNames returns the stored names of server's tools, and the revision of the stored value, which SetValue
// needs. names is nil if nothing is stored, or if the stored value cannot be decoded.
func (c *Client) loadToolNames(ctx context.Context, server string) (names []string, revision uint64, _ error) {
	data, revision, err := c.opts.ToolNames.Value(ctx, toolNamesKey(server))
	if err != nil {
		return nil, 0, fmt.Errorf("read the names of tools: %w", err)
	}
	if len(data) > 0 && json.Unmarshal(data, &names) != nil {
		names = nil // another version of answerd wrote the value; the next list replaces it
	}
	return names, revision, nil
}

// storeToolNames stores the names of tools, which the server has listed, unless it stored the same names last. It takes
// at most toolNamesTimeout. It only logs an error; the next list tries again. A server's lists arrive one at a time.
func (s *server) storeToolNames(tools []catalog.Tool) {
	client := s.client
	if client.opts.ToolNames == nil {
		return
	}
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Original
	}
	slices.Sort(names)
	if s.storedNames != nil && slices.Equal(s.storedNames, names) {
		return
	}
	// Not cancelled by the end of the server's life, because the next process needs the names. Close waits for this.
	ctx, stop := context.WithTimeout(context.WithoutCancel(s.life), toolNamesTimeout)
	defer stop()
	if err := client.saveToolNames(ctx, s.cfg.Name, names); err != nil {
		s.log.Warn("the names of an MCP server's tools cannot be stored, so they are not reserved after a restart", "error", err)
		return
	}
	s.storedNames = names
}

// saveToolNames stores names, the names of server's tools, in place of those that are stored. If they do not fit into
// one value, it stores only the first half of them, or the first quarter, and so on, because every stored name is of
// use. If another process stores its list of the same server's tools first, each of toolNamesTries times, saveToolNames
// leaves that list and returns nil.
func (c *Client) saveToolNames(ctx context.Context, server string, names []string) error {
	data, err := json.Marshal(names)
	for err == nil && len(data) > values.MaxSize {
		names = names[:len(names)/2]
		data, err = json.Marshal(names)
	}
	if err != nil {
		return fmt.Errorf("encode the names of tools: %w", err)
	}
	for range toolNamesTries {
		_, revision, err := c.loadToolNames(ctx, server)
		if err != nil {
			return err
		}
		// Store the names even if they are unchanged, because that renews the ttl.
		newRevision, err := c.opts.ToolNames.SetValue(ctx, toolNamesKey(server), data, revision, toolNamesTTL)
		if err != nil {
			return fmt.Errorf("store the names of tools: %w", err)
		}
		if newRevision > 0 { // 0: another process has stored names since loadToolNames
			return nil
		}
	}
	return nil
}
