package jetstream

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"

	"answerd/internal/event"
)

// The streams hold all runs. A stream for each run, or a consumer for each reader, would cost
// the server memory; a stream allows 1,000 consumers.
const (
	runsName  = "ANSWERD_RUNS"  // events, inputs, results
	indexName = "ANSWERD_INDEX" // records, owners, keys
	jobsName  = "ANSWERD_JOBS"  // the work queue
	// valuesName is the stream of the values of package values. They have their own stream so that events and runs
	// cannot use their space: if a token cannot be stored, a user has to sign in again.
	valuesName = "ANSWERD_VALUES"
)

// workersName names the one consumer of the work queue.
const workersName = "workers"

// Prefixes of subjects. The messages of a run are on answerd.run.SHARD.ID.…, and the server republishes each
// of them on answerd.live.SHARD.ID.…. The shards divide the server's tree of subjects,
// because reading one run costs more if its node in the tree has more siblings.
const (
	runPrefix    = "answerd.run."
	livePrefix   = "answerd.live."
	recordPrefix = "answerd.rec."  // ID: the record of a run
	ownerPrefix  = "answerd.own."  // OWNER.THREAD.ID: the index entry of a run
	keyPrefix    = "answerd.key."  // DIGEST: an idempotency key
	jobPrefix    = "answerd.job."  // ID: the job of a run
	valuePrefix  = "answerd.val."  // DIGEST: a value
	wakePrefix   = "answerd.wake." // ID: makes an instance claim the job now, before the delayed message is due
	// Core NATS requests between instances, with the id of a run as data.
	claimedPrefix = "answerd.held." // INSTANCE: asks this instance whether it executes the run
	readerSubject = "answerd.read"  // asks all instances whether they have a reader of the run

	shards = 16
)

// Kinds of a run's messages: the token after the run's id in the subject, and the tokens that follow it.
const (
	eventToken   = "ev"   // events and control messages
	inputToken   = "in"   // .INPUT: answers and requests from outside
	resultToken  = "res"  // .CALL: results
	requestToken = "req"  // the request of the job, if the message of the job does not have it
	partToken    = "part" // .NONCE.N: a part of a payload that is too large for one message
)

// runSubject returns the subject of messages of a run in the stream. tokens are the kind and what follows it; they may
// have wildcards.
func runSubject(run, tokens string) string { return runPrefix + shardedID(run) + "." + tokens }

// liveSubject returns the subject on which the messages of runSubject arrive live.
func liveSubject(run, tokens string) string { return livePrefix + shardedID(run) + "." + tokens }

// shardedID returns SHARD.ID of a run, where SHARD is a hash of the id.
func shardedID(run string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // never fails
	return strconv.Itoa(int(h.Sum32()%shards)) + "." + run
}

// runOf returns the id of the run in a subject of runSubject, and whether the subject is that of the run's events and
// control messages. It returns "" for another subject.
func runOf(subject string) (id string, isEvent bool) {
	tokens := strings.SplitN(subject, ".", 5) // answerd run SHARD ID …
	if len(tokens) < 5 {
		return "", false
	}
	return tokens[3], tokens[4] == eventToken
}

// subjectDigest returns a token for subjects that stands for parts, in order. Owners, threads, keys and call ids come
// from outside and could contain dots and wildcards.
func subjectDigest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// ownerToken returns the token that stands for an owner in subjects.
func ownerToken(owner event.Owner) string { return subjectDigest(owner.Issuer, owner.Subject) }

// ownerSubject returns the subject of a run's index entry.
func ownerSubject(run event.Run) string {
	return ownerPrefix + ownerToken(run.Owner) + "." + subjectDigest(run.ThreadID) + "." + run.ID
}

// keySubject returns the subject of the record of an owner's idempotency key.
func keySubject(owner event.Owner, key string) string {
	return keyPrefix + subjectDigest(owner.Issuer, owner.Subject, key)
}

// lastToken returns the part of a subject after its last dot.
func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// maxRunsBytes returns the limit of the stream of runs: three quarters of maxBytes. Threads have the rest.
func maxRunsBytes(maxBytes int64) int64 { return maxBytes / 4 * 3 }

// maxIndexBytes returns the limit of the stream of the index. The streams of jobs and of values have half of it each.
func maxIndexBytes(maxBytes int64) int64 { return max(maxBytes/8, 1<<20) }
