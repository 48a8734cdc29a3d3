package jetstream

import (
	"time"
)

// How an embedded log recovers from a full disk
//
// Deleting a run needs disk space too, for which there is a reserve (package embedded). When a write has failed, the
// log becomes unready and accepts no events (diskFull). The server accepts no writes after one has failed, so
// recoverDisk removes the reserve and opens the store again. It then deletes the runs and threads whose retention has
// passed, until the reserve fits on the disk again. It deletes no other run. If that is not enough although runs have
// expired, it deletes the least recently updated threads (deleteThreadsForSpace).

// diskCheckInterval separates two attempts to recover a disk that was full.
const diskCheckInterval = time.Second

// recoverDiskLoop calls recoverDisk every diskCheckInterval while the disk of the embedded log is full, until Close.
func (l *Log) recoverDiskLoop() {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	var full shortage // spans the calls of recoverDisk
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

// recoverDisk makes one attempt to recover from a full disk, and clears diskFull if it succeeds. Otherwise the next
// call continues. Opening the store again loses nothing: acknowledged events are on the disk, and jobs are delivered
// again when their leases end.
func (l *Log) recoverDisk(full *shortage) {
	defer l.recoverPanic("recover from a full disk")
	e := l.embedded
	// The store must be opened again in the first attempt, which removes the reserve, and after every failed write.
	if released := e.ReleaseReserve(); released || e.Health() != nil {
		if !e.CanOpen() {
			return
		}
		if err := e.Reopen(true); err != nil {
			l.logger.Warn("the event log's files could not be opened again", "error", err)
			return
		}
		l.requestResync()
	}

	before := l.expired.Load()
	l.expireOnce()
	if err := l.threads.Expire(l.ctx); err != nil {
		l.logger.Warn("expired threads could not be deleted from the event log", "error", err)
	}
	if e.MakeReserve() != nil { // there is still too little space
		l.deleteThreadsForSpace(full, before)
		return
	}
	if err := e.Reopen(false); err != nil { // ends the frequent compaction
		l.logger.Warn("the event log's files could not be opened again", "error", err)
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
