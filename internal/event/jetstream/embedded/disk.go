package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
)

const (
	// minFreeToAppend is how many bytes, in addition to the reserve, must be free before the log accepts events again.
	// minFreeToOpen is how many must be free before the server's store is opened.
	minFreeToAppend = 4 << 20
	minFreeToOpen   = 1 << 20
	// reserveBytes is the size of the reserve. The server needs 8 MiB of it to compact the largest file of a stream
	// (nats-server 2.15). The rest is minFreeToAppend.
	reserveBytes = 12 << 20
	reserveName  = "reserve"
	// minMaxBytes is the smallest limit that fitDisk chooses.
	minMaxBytes = 1 << 20
)

// DiskError says that the file system of a log has too little space for the log's size limit.
type DiskError struct {
	Need int64 // bytes needed for the log, its index and its reserve
	Have int64 // bytes that are free or already belong to the log
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("the log needs %d MiB on its file system, which has %d MiB for it", e.Need>>20, e.Have>>20)
}

// fitDisk returns the size limit, in bytes, of a log in dir whose streams have these names. If maxBytes is not 0,
// fitDisk returns maxBytes, or a *DiskError if the file system is too small for it. If maxBytes is 0, fitDisk chooses:
//   - defaultBytes if the disk has space for that, or as much as the streams already store if that is more, but then at
//     most event.DefaultMaxBytes;
//   - otherwise the largest limit for which the disk has space, but at least minMaxBytes and what the streams already
//     store. It then logs a warning.
//
// The size that is stored matters because a stream drops messages beyond its limit.
func fitDisk(dir string, maxBytes, defaultBytes int64, streams []string, logger *slog.Logger) (int64, error) {
	free, err := freeBytes(dir)
	if err != nil {
		return 0, err
	}
	available := free + bytesIn(dir)
	largest := (available - reserveBytes) / 5 * 4 // the rest is for the log's index, which may use a quarter of the log's size
	switch {
	case maxBytes > largest:
		return 0, &DiskError{Need: maxBytes/4*5 + reserveBytes, Have: available}
	case maxBytes > 0:
		return maxBytes, nil
	}
	stored := int64(0)
	for _, stream := range streams {
		stored += bytesIn(filepath.Join(dir, "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs"))
	}
	if largest < defaultBytes {
		limit := max(largest, stored, minMaxBytes)
		logger.Warn("the bound of the event log is smaller than its default, because its file system has no more space",
			"max_bytes", limit, "default", defaultBytes)
		return limit, nil
	}
	return max(defaultBytes, min(stored, event.DefaultMaxBytes)), nil
}

// bytesIn returns the total size of all files below dir. Files that cannot be read count as empty.
func bytesIn(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total
}

// reserve is a file in dir that occupies disk space. It is removed when the log needs space to delete runs.
type reserve struct{ dir string }

func (r reserve) path() string { return filepath.Join(r.dir, reserveName) }

// prepare makes sure that the reserve exists, before the store is opened. It returns false if the disk has too little
// space. It then removes the reserve, so that the store can be opened and runs can be deleted.
func (r reserve) prepare() bool {
	if info, err := os.Stat(r.path()); err == nil && info.Size() == reserveBytes && r.hasFree(minFreeToAppend) {
		return true
	}
	r.release() // the file may be incomplete
	return r.make() == nil
}

// make writes the reserve, if that leaves minFreeToAppend bytes free. Otherwise it returns an error and leaves no file.
// The content is random, because some file systems compress files. It repeats a block of 1 MiB, which is more than a
// file system compresses at a time.
func (r reserve) make() error {
	if !r.hasFree(reserveBytes + minFreeToAppend) {
		return errors.New("the disk has no space for the reserve of the event log")
	}
	block := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block) // never fails
	if err := os.WriteFile(r.path(), bytes.Repeat(block, reserveBytes/len(block)), 0o600); err != nil {
		r.release()
		return fmt.Errorf("write the reserve of the event log: %w", err)
	}
	return nil
}

// release removes the reserve. It returns false if no reserve was removed.
func (r reserve) release() bool { return os.Remove(r.path()) == nil }

// hasFree reports whether at least bytes bytes are free on the disk. It returns false if the free space cannot be read.
func (r reserve) hasFree(bytes int64) bool {
	free, err := freeBytes(r.dir)
	return err == nil && free >= bytes
}
