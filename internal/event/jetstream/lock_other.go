//go:build !unix

package jetstream

import "os"

// lockFile opens the file and locks nothing: only Unix has locks in the standard library.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
