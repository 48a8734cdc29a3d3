package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"answerd/internal/mcp"
)

// Set by the linker for releases.
var (
	version = "dev"
	commit  = ""
)

// printVersion prints what a bug report needs.
func printVersion(stdout io.Writer) error {
	rev := commit
	if info, ok := debug.ReadBuildInfo(); ok && rev == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	if rev == "" {
		rev = "unknown"
	}
	_, err := fmt.Fprintf(stdout, "answerd %s\ncommit  %s\ngo      %s\nmcp     %s\n",
		version, rev, runtime.Version(), strings.Join(mcp.ProtocolVersions(), ", "))
	return err
}
