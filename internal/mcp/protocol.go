package mcp

import sdk "github.com/modelcontextprotocol/go-sdk/mcp"

// ProtocolVersions are the protocol versions that this client speaks, the newest
// first: those of the SDK, which settles on one with each server.
func ProtocolVersions() []string { return sdk.SupportedProtocolVersions() }
