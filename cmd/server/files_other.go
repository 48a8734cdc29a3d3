//go:build !unix

package main

// maxFiles is how many files the process may have open; 0 since nobody knows.
func maxFiles() int { return 0 }
