//go:build !unix

package jetstream

import "os"

// lockFile opens the file and does not lock it: the standard library has file locks on Unix only.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
