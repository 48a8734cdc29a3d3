package mcp

// Repeatable reports whether a call of the tool may be sent again when nobody knows what
// became of it: it changes nothing, or the operator says so.
func (c *Client) Repeatable(tool string) bool {
	b, ok := c.catalog.Resolve(tool)
	if !ok {
		return false
	}
	s := c.serverByID(b.ServerID)
	return s != nil && s.isRepeatable(b)
}
