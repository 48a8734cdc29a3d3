// Package transport holds the failures of requests to MCP servers, and when they are tried again.
package transport
