//go:build !unix

package mcp

import "testing"

// groupID is nothing: there are no process groups here.
func groupID() int { return 0 }

func checkNoChildren(*testing.T) {}

func checkWaitedFor(*testing.T, *childProcess) {}
