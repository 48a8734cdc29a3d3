//go:build !unix

package main

// maxOpenFiles returns 0, which means that the limit is unknown on this system.
func maxOpenFiles() int { return 0 }
