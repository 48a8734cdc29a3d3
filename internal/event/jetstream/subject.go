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
	// valuesName has the values of package values. They have a stream of their own because events
	// and runs must not take their space: a token that cannot be stored costs a user their sign-in.
	valuesName = "ANSWERD_VALUES"
)

// workersName names the one consumer of the work queue.
const workersName = "workers"

// Subjects. The messages of a run are on answerd.run.SHARD.ID.…, and the server republishes each
// of them live on answerd.live.SHARD.ID.…. The shards divide the server's tree of subjects,
// because reading one run costs more with more neighbors in the tree.
const (
	runPrefix    = "answerd.run."
	livePrefix   = "answerd.live."
	recordPrefix = "answerd.rec."  // ID: the record of a run
	ownerPrefix  = "answerd.own."  // OWNER.THREAD.ID: the index entry of a run
	keyPrefix    = "answerd.key."  // DIGEST: an idempotency key
	jobPrefix    = "answerd.job."  // ID: the job of a run
	valuePrefix  = "answerd.val."  // DIGEST: a value
	wakePrefix   = "answerd.wake." // ID: the same job, to be claimed now although the first message is delayed
	// Two kinds of core NATS requests between instances.
	claimedPrefix = "answerd.held." // INSTANCE: does this instance execute the run?
	readerSubject = "answerd.read"  // does any instance have a reader of a run?

	shards = 16
)

// The token after a run's id gives the kind of a message.
const (
	eventToken   = "ev"   // events and control messages
	inputToken   = "in"   // .INPUT: answers and requests from outside
	resultToken  = "res"  // .CALL: results
	requestToken = "req"  // the request that the executor was given, if it is not in the message of the job
	partToken    = "part" // .NONCE.N: a part of a payload that is too large for one message
)

// runSubject returns the subject of a run's messages with the tokens after its id.
func runSubject(run, tokens string) string { return runPrefix + shardedID(run) + "." + tokens }

// liveSubject returns the subject on which the messages of runSubject arrive live.
func liveSubject(run, tokens string) string { return livePrefix + shardedID(run) + "." + tokens }

// shardedID returns SHARD.ID.
func shardedID(run string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // never fails
	return strconv.Itoa(int(h.Sum32()%shards)) + "." + run
}

// runOf returns the run of a subject that runSubject made, and whether the subject is that of its events.
func runOf(subject string) (id string, isEvent bool) {
	tokens := strings.SplitN(subject, ".", 5) // answerd run SHARD ID …
	if len(tokens) < 5 {
		return "", false
	}
	return tokens[3], tokens[4] == eventToken
}

// subjectDigest makes a subject token from any text. Owners, threads, keys and call ids come from
// outside and could contain dots and wildcards.
func subjectDigest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func ownerToken(o event.Owner) string { return subjectDigest(o.Issuer, o.Subject) }

// ownerSubject returns the subject of a run's index entry.
func ownerSubject(r event.Run) string {
	return ownerPrefix + ownerToken(r.Owner) + "." + subjectDigest(r.ThreadID) + "." + r.ID
}

func keySubject(o event.Owner, key string) string {
	return keyPrefix + subjectDigest(o.Issuer, o.Subject, key)
}

// lastToken returns the part of a subject after its last dot.
func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// maxRunsBytes returns the limit of the stream of runs. Threads have the rest of maxBytes.
func maxRunsBytes(maxBytes int64) int64 { return maxBytes / 4 * 3 }

// maxIndexBytes returns the limit of the index, and of the jobs and the values together.
func maxIndexBytes(maxBytes int64) int64 { return max(maxBytes/8, 1<<20) }
