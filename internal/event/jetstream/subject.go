package jetstream

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"

	"answerd/internal/event"
)

// Subjects. A run's are answerd.run.SHARD.ID.…, and what is appended there comes again,
// live, as answerd.live.SHARD.ID.…. The shards split the server's tree of subjects:
// reading one run costs time for its neighbours in the tree.
const (
	runRoot  = "answerd.run."
	liveRoot = "answerd.live."
	recRoot  = "answerd.rec."  // ID: the record of a run
	ownRoot  = "answerd.own."  // OWNER.THREAD.ID: the same run, by owner
	keyRoot  = "answerd.key."  // an idempotency key
	jobRoot  = "answerd.job."  // ID
	wakeRoot = "answerd.wake." // ID: the same job, now, although the other is put off
	heldRoot = "answerd.held."
	readRoot = "answerd.read" // the question who reads a run

	shards = 16
)

// Kinds of a run's messages, the token after its id.
const (
	evKind   = "ev"   // its events, claims and notes
	inKind   = "in"   // .INPUT: answers and requests from outside
	resKind  = "res"  // .CALL: results
	reqKind  = "req"  // what the executor was given
	partKind = "part" // .NONCE.N: a piece of a payload that is too large for one message
)

// runSubject is SHARD.ID, the part of a run's subjects that is the same in both trees.
func runSubject(id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return strconv.Itoa(int(h.Sum32()%shards)) + "." + id
}

// digest makes a token of anything: owners, threads, keys and the call ids that models
// and servers make up must not become part of a subject as they are.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func ownerToken(o event.Owner) string { return digest(o.Issuer, o.Subject) }

func ownSubject(r event.Run) string {
	return ownRoot + ownerToken(r.Owner) + "." + digest(r.ThreadID) + "." + r.ID
}

// lastToken is the part of a subject after its last dot.
func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
