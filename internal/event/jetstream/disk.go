package jetstream

import (
	"time"

	"answerd/internal/event/jetstream/embedded"
)

// How an embedded log recovers from a full disk
//
// Deleting a run also needs disk space, which a reserve provides (see package embedded). When a write fails, the log
// reports that it is not ready and accepts no events (diskFull). The server accepts no writes after one has failed, so
// recoverDisk removes the reserve and opens the store again. It then deletes runs and threads whose retention has
// passed, until the reserve fits on the disk again. It deletes no other runs. If that is not enough although runs have
// expired, it deletes the least recently updated threads (deleteThreadsForSpace).

// diskCheckInterval is the time between two attempts to recover from a full disk.
const diskCheckInterval = time.Second

// recoverDiskLoop calls recoverDisk every diskCheckInterval while the disk of the embedded log is full. It returns
// after Close.
func (l *Log) recoverDiskLoop() {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	var full shortage // the same for all calls of recoverDisk
	for {
		select {
		case <-tick.C:
			if l.diskFull.Load() {
				l.recoverDisk(&full)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// recoverDisk makes one attempt to recover from a full disk, and clears diskFull on success:
//
//  1. It removes the reserve, and opens the store again so that the server accepts writes. That loses nothing, because
//     acknowledged events are on the disk, and jobs are delivered again when their leases end. A later attempt repeats
//     this only after another failed write.
//  2. It deletes what has expired and writes the reserve again. If the disk lacks the space, it deletes threads, and
//     the next attempt continues here.
//  3. It opens the store without the frequent compaction, and repairs the runs if that is still to be done.
func (l *Log) recoverDisk(full *shortage) {
	defer l.recoverPanic("recover from a full disk")
	if released := l.embedded.ReleaseReserve(); released || l.embedded.Health() != nil {
		if !l.embedded.CanOpen() || !l.reopenStore(embedded.ShortCompactInterval) {
			return
		}
		l.requestResync()
	}
	if !l.restoreReserve(full) || !l.reopenStore(embedded.DefaultCompactInterval) {
		return
	}
	if l.unrepaired {
		if err := l.repairRuns(l.ctx); err != nil {
			l.logger.Warn("the runs of the event log could not be repaired", "error", err)
			return
		}
		l.unrepaired = false
	}
	l.diskFull.Store(false)
	l.logger.Info("event log disk writable again")
	l.requestResync()
}

// reopenStore opens the server's store again. It logs an error, and returns false.
func (l *Log) reopenStore(interval embedded.CompactInterval) bool {
	if err := l.embedded.Reopen(interval); err != nil {
		l.logger.Warn("the event log's files could not be opened again", "error", err)
		return false
	}
	return true
}

// restoreReserve deletes the runs and threads whose retention has passed, and writes the reserve again. It returns
// false if the disk has too little space for that, after it has deleted other threads if necessary
// (deleteThreadsForSpace).
func (l *Log) restoreReserve(full *shortage) bool {
	before := l.expired.Load()
	l.expireOnce()
	if err := l.threads.Expire(l.ctx); err != nil {
		l.logger.Warn("expired threads could not be deleted from the event log", "error", err)
	}
	if l.embedded.MakeReserve() != nil { // the free space is still too small
		l.deleteThreadsForSpace(full, before)
		return false
	}
	return true
}
