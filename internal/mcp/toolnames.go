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

// After a restart, a server that is down must keep the names of its tools: a rule, an approval or a run in the log
// may refer to one of them, so a tool of another server must not get the name before the server is back. So the names
// that each server listed last are stored in Options.ToolNames, and are reserved when a process starts.

const (
	toolNamesTTL     = 365 * 24 * time.Hour // renewed by each process that lists the tools
	toolNamesTimeout = 3 * time.Second      // for the store at a start, and for storing one list
	toolNamesTries   = 3                    // to store a list while other processes store theirs
)

// toolNamesKey returns the key under which the names of a server's tools are stored.
func toolNamesKey(server string) values.Key { return values.NewKey("tool names", server) }

// expectToolNames makes the catalog reserve the names that servers listed in earlier processes. It reads the names of
// each enabled server once in the life of the Client, and all of them at the same time. It waits for the store for
// toolNamesTimeout at most. An error is only logged: servers must connect without the store too.
func (c *Client) expectToolNames(servers []config.Server) {
	if c.opts.ToolNames == nil {
		return
	}
	ctx, stop := context.WithTimeout(c.life, toolNamesTimeout)
	defer stop()
	var all sync.WaitGroup
	for _, s := range servers {
		if s.Disabled || c.catalog.IsExpected(s.Name) {
			continue
		}
		all.Go(func() {
			names, _, err := c.loadToolNames(ctx, s.Name)
			if err != nil {
				c.log.Warn("the names of an MCP server's tools cannot be read, so other servers may get them until it is connected",
					"mcp_server", s.Name, "error", err)
				return
			}
			c.catalog.ExpectTools(s.Name, names)
		})
	}
	all.Wait()
}

// loadToolNames returns the stored names of a server's tools, and their revision for saveToolNames. names is nil if
// nothing is stored, or if the stored value cannot be decoded.
func (c *Client) loadToolNames(ctx context.Context, server string) (names []string, revision uint64, _ error) {
	data, revision, err := c.opts.ToolNames.Value(ctx, toolNamesKey(server))
	if err != nil {
		return nil, 0, fmt.Errorf("read the names of tools: %w", err)
	}
	if len(data) > 0 && json.Unmarshal(data, &names) != nil {
		names = nil // another version has written the value; the next list replaces it
	}
	return names, revision, nil
}

// storeToolNames stores the names of the tools that a server has listed, unless they are the names that this process
// stored last. It waits for the store for toolNamesTimeout at most. An error is only logged; the next list tries
// again.
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
	client.names.mu.Lock()
	last, ok := client.names.last[s.cfg.Name]
	client.names.mu.Unlock()
	if ok && slices.Equal(last, names) {
		return
	}
	// The end of the server's life does not cancel this, and Close waits for it: the next process needs the names.
	ctx, stop := context.WithTimeout(context.WithoutCancel(s.life), toolNamesTimeout)
	defer stop()
	if err := client.saveToolNames(ctx, s.cfg.Name, names); err != nil {
		s.log.Warn("the names of an MCP server's tools cannot be stored, so they are not reserved after a restart", "error", err)
		return
	}
	client.names.mu.Lock()
	defer client.names.mu.Unlock()
	if client.names.last == nil {
		client.names.last = make(map[string][]string)
	}
	client.names.last[s.cfg.Name] = names
}

// saveToolNames stores the names of a server's tools. If they do not fit into one value, it leaves out the later half
// until they do. If other processes store names of the same server toolNamesTries times in between, it returns nil
// and leaves theirs: they list the same server.
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
		// Store the names even if they are the same as the stored ones: that renews the ttl.
		next, err := c.opts.ToolNames.SetValue(ctx, toolNamesKey(server), data, revision, toolNamesTTL)
		if err != nil {
			return fmt.Errorf("store the names of tools: %w", err)
		}
		if next > 0 {
			return nil
		}
	}
	return nil
}
