//go:build !unix

package main

// maxOpenFiles is how many files the process may have open; 0 since nobody knows.
func maxOpenFiles() int { return 0 }
