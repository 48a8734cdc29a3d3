package jetstream

import (
	"hash/fnv"
	"strconv"
	"strings"

	"answerd/internal/event"
	"answerd/internal/values"
)

// A few streams hold all runs. A stream per run, or a consumer per reader, would cost the server too much memory, and a
// stream allows only 1,000 consumers.
const (
	runsName  = "ANSWERD_RUNS"  // events, inputs, results
	indexName = "ANSWERD_INDEX" // records, owners, keys
	jobsName  = "ANSWERD_JOBS"  // the work queue
	// valuesName is the stream for package values. It is a separate stream, so that events and runs cannot use up its
	// space: if a token cannot be stored, a user has to sign in again.
	valuesName = "ANSWERD_VALUES"
)

// workersName is the name of the work queue's only consumer.
const workersName = "workers"

// Prefixes of subjects. A run's messages are on answerd.run.SHARD.ID.…, and the server republishes each of them on
// answerd.live.SHARD.ID.…. The shards divide the server's tree of subjects, because reading one run costs more if its
// node in the tree has many siblings.
const (
	runPrefix    = "answerd.run."
	livePrefix   = "answerd.live."
	recordPrefix = "answerd.rec."  // ID: the record of a run
	ownerPrefix  = "answerd.own."  // OWNER.THREAD.ID: the index entry of a run
	keyPrefix    = "answerd.key."  // DIGEST: an idempotency key
	jobPrefix    = "answerd.job."  // ID: the job of a run
	valuePrefix  = "answerd.val."  // DIGEST: a value
	wakePrefix   = "answerd.wake." // ID: makes an instance claim the job now, before the delayed message is due
	// Core NATS requests between instances. Their data is a run's id.
	claimedPrefix = "answerd.held." // INSTANCE: asks this instance whether it executes the run
	readerSubject = "answerd.read"  // asks all instances whether they have a reader of the run

	shards = 16
)

// Kinds of a run's messages. The kind is the token after the run's id in the subject. Some kinds have more tokens.
const (
	eventToken   = "ev"   // events and control messages
	inputToken   = "in"   // .INPUT: answers and requests from outside
	resultToken  = "res"  // .CALL: results
	requestToken = "req"  // the request of the job, if it is not in the job's message
	partToken    = "part" // .NONCE.N: a part of a payload that is too large for one message
)

// runSubject returns the subject of a run's messages in the stream. tokens is the kind with the tokens that follow it,
// and may have wildcards.
func runSubject(run, tokens string) string { return runPrefix + shardedID(run) + "." + tokens }

// liveSubject returns the subject on which the messages of runSubject(run, tokens) are republished.
func liveSubject(run, tokens string) string { return livePrefix + shardedID(run) + "." + tokens }

// shardedID returns SHARD.ID for a run, where SHARD is a hash of the id.
func shardedID(run string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // never fails
	return strconv.Itoa(int(h.Sum32()%shards)) + "." + run
}

// runOf returns the run's id in a subject made by runSubject. isEvent says whether the subject is that of the run's
// events and control messages. For any other subject, id is "".
func runOf(subject string) (id string, isEvent bool) {
	tokens := strings.SplitN(subject, ".", 5) // answerd run SHARD ID …
	if len(tokens) < 5 {
		return "", false
	}
	return tokens[3], tokens[4] == eventToken
}

// subjectDigest returns a token that represents parts, in this order, in subjects. Owners, threads, keys and call ids
// come from outside and could contain dots and wildcards. It is the first half of the digest of values.NewKey.
func subjectDigest(parts ...string) string { return values.NewKey(parts...).String()[:32] }

// ownerToken returns the token that represents an owner in subjects.
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

// maxRunsBytes returns the limit of the stream of runs, which is three quarters of maxBytes. Threads get the rest.
func maxRunsBytes(maxBytes int64) int64 { return maxBytes / 4 * 3 }

// maxIndexBytes returns the limit of the index stream. The streams of jobs and of values each get half as much.
func maxIndexBytes(maxBytes int64) int64 { return max(maxBytes/8, 1<<20) }
