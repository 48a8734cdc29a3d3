package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event/jetstream/embedded"
	"answerd/internal/event/jetstream/threads"
	"answerd/internal/help"
)

const (
	// setupTimeout is how long Open waits for the cluster to create the streams.
	setupTimeout = 30 * time.Second
	// setupAttemptTimeout bounds one request to create a stream or a consumer. A cluster without a leader does not
	// answer.
	setupAttemptTimeout = 3 * time.Second
	// clusterReplicas is how many replicas a new stream gets in a cluster with at least as many servers. With three,
	// the stream works without one of them.
	clusterReplicas = 3
	// maxConsumers limits the consumers of a stream. Only the stream of runs has any: at most one for each process,
	// while the log is nearly full (package share). Reads create no consumers.
	maxConsumers = 16
)

// openStreams opens the streams and the consumer of jobs, and creates those that are missing. It sets the fields of
// client for them, and maxPart.
func (l *Log) openStreams(ctx context.Context) (err error) {
	// The library limits the number of messages from send that are not acknowledged. Without this timeout, a message
	// that is never acknowledged would count forever.
	if l.js, err = js.New(l.write, js.WithPublishAsyncTimeout(createTimeout)); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	// Use half of the server's limit, because headers and the encoding of a batch count too.
	l.maxPart = int(min(l.write.MaxPayload(), embedded.MaxPayload)) / 2
	replicas := 1 // of new streams
	if len(l.write.Servers()) >= clusterReplicas {
		replicas = clusterReplicas
	}
	if l.runsStream, err = l.openStream(ctx, l.runsConfig(replicas)); err != nil {
		return err
	}
	if l.indexStream, err = l.openStream(ctx, l.indexConfig(replicas)); err != nil {
		return err
	}
	if l.jobsStream, err = l.openStream(ctx, l.jobsConfig(replicas)); err != nil {
		return err
	}
	if _, err = l.openStream(ctx, l.valuesConfig(replicas)); err != nil {
		return err
	}
	heads, turns := threads.Streams(l.maxBytes, replicas)
	if err = l.openThreadStreams(ctx, heads, turns); err != nil {
		return err
	}
	return l.openConsumer(ctx)
}

// runsConfig returns the configuration of the stream with the messages of runs. The server republishes each message, so
// that all instances receive it live. A log that no other process uses does not need that, and republishing a message
// costs half as much as storing it.
func (l *Log) runsConfig(replicas int) js.StreamConfig {
	config := js.StreamConfig{
		Name:         runsName,
		Subjects:     []string{runPrefix + ">"},
		Storage:      js.FileStorage,
		Replicas:     replicas,
		MaxBytes:     maxRunsBytes(l.maxBytes),
		Discard:      js.DiscardOld,
		AllowDirect:  true,
		MaxConsumers: maxConsumers,
	}
	if !l.alone {
		config.RePublish = &js.RePublish{Source: runPrefix + ">", Destination: livePrefix + ">"}
	}
	return config
}

// indexConfig returns the configuration of the stream with the records of runs. A full index refuses new runs. If it
// dropped old records instead, owners could no longer find the runs of those records.
func (l *Log) indexConfig(replicas int) js.StreamConfig {
	return js.StreamConfig{
		Name:              indexName,
		Subjects:          []string{recordPrefix + "*", ownerPrefix + ">", keyPrefix + "*"},
		Storage:           js.FileStorage,
		Replicas:          replicas,
		MaxBytes:          maxIndexBytes(l.maxBytes),
		Discard:           js.DiscardNew,
		MaxMsgsPerSubject: 1,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		MaxConsumers:      maxConsumers,
	}
}

// jobsConfig returns the configuration of the stream with jobs and wake messages. A subject holds at most one message:
// the stream refuses a second one until the first was acknowledged. The stream gets half as much space as the index.
func (l *Log) jobsConfig(replicas int) js.StreamConfig {
	return js.StreamConfig{
		Name:                 jobsName,
		Subjects:             []string{jobPrefix + "*", wakePrefix + "*"},
		Storage:              js.FileStorage,
		Replicas:             replicas,
		MaxBytes:             maxIndexBytes(l.maxBytes) / 2,
		Discard:              js.DiscardNew,
		MaxMsgsPerSubject:    1,
		DiscardNewPerSubject: true,
		Retention:            js.WorkQueuePolicy,
	}
}

// valuesConfig returns the configuration of the stream for package values. Each subject holds one message, the current
// value of a key. A full stream refuses new values instead of dropping old ones. It gets half as much space as the
// index.
func (l *Log) valuesConfig(replicas int) js.StreamConfig {
	return js.StreamConfig{
		Name:              valuesName,
		Subjects:          []string{valuePrefix + "*"},
		Storage:           js.FileStorage,
		Replicas:          replicas,
		MaxBytes:          maxIndexBytes(l.maxBytes) / 2,
		Discard:           js.DiscardNew,
		MaxMsgsPerSubject: 1,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		MaxConsumers:      maxConsumers,
	}
}

// openThreadStreams opens the streams of threads. The stream of runs may be larger than its part of maxBytes, because
// earlier versions of answerd used all of maxBytes for runs. Until enough runs were deleted, the stream of turns gets
// less space to compensate.
func (l *Log) openThreadStreams(ctx context.Context, heads, turns js.StreamConfig) (err error) {
	excess := l.runsStream.CachedInfo().Config.MaxBytes - maxRunsBytes(l.maxBytes)
	turns.MaxBytes = max(turns.MaxBytes-max(excess, 0), 1<<20)
	if l.headsStream, err = l.openStream(ctx, heads); err != nil {
		return err
	}
	l.turnsStream, err = l.openStream(ctx, turns)
	return err
}

// openThreads creates the store of threads, sets l.threads and l.Threads to it, and loads the threads. It repeats a
// failed load until setupTimeout has passed, because new streams may not answer yet.
func (l *Log) openThreads(ctx context.Context, retention time.Duration) error {
	l.threads = threads.New(l.threadsServer(), retention, l.logger)
	l.Threads = l.threads
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	for {
		err := l.threads.Load(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return fmt.Errorf("read the threads: %w", err)
		}
	}
}

// threadsServer returns the functions through which package threads uses this log's connections and timeouts.
func (l *Log) threadsServer() threads.Server {
	streams := map[string]js.Stream{threads.HeadsStream: l.headsStream, threads.TurnsStream: l.turnsStream}
	return threads.Server{
		Publish: func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error) {
			return l.publishAfter(ctx, stream, m, last, createTimeout)
		},
		PublishRemoval: l.publishRemoval,
		ReadLast:       l.readLastFromLeader,
		ReadEach:       l.readLastOfEach,
		ReadFrom: func(ctx context.Context, stream, subject string, from uint64) ([]threads.Message, bool, error) {
			return l.readBatch(ctx, stream, directGet{Next: subject, From: from})
		},
		Purge: func(ctx context.Context, stream, subject string) error {
			return purgeSubject(ctx, streams[stream], subject)
		},
		Delete: func(ctx context.Context, stream string, pos uint64) error {
			return deleteMessage(ctx, streams[stream], pos)
		},
		Usage: func(ctx context.Context, stream string) (size, limit int64, err error) {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			info, err := l.streamInfo(ctx, streams[stream])
			if err != nil {
				return 0, 0, unavailableError("read the state of the log", err)
			}
			return int64(info.State.Bytes), info.Config.MaxBytes, nil
		},
		DiskFull:  l.diskFull.Load,
		IsFull:    isFull,
		Now:       l.Now,
		MaxPart:   l.maxPart,
		Clustered: l.clustered,
		Alone:     l.embedded != nil,
	}
}

// followThreadsLoop calls threads.Store.Follow until Close. If Follow panics, it calls Follow again.
func (l *Log) followThreadsLoop() {
	for l.ctx.Err() == nil {
		func() {
			defer l.recoverPanic("follow the threads")
			l.threads.Follow(l.ctx)
		}()
	}
}

// openConsumer creates or updates the consumer of the work queue, from which all instances claim jobs. For an embedded
// log it first removes the consumer that the previous process has left, so that all jobs are delivered at once.
func (l *Log) openConsumer(ctx context.Context) error {
	if l.embedded != nil {
		// That consumer still has the leases of a process that has ended.
		if err := l.jobsStream.DeleteConsumer(ctx, workersName); err != nil && !errors.Is(err, js.ErrConsumerNotFound) {
			return fmt.Errorf("make the consumer of jobs: %w", err)
		}
	}
	err := l.retrySetup(ctx, func(ctx context.Context) error {
		_, err := l.jobsStream.CreateOrUpdateConsumer(ctx, l.consumerConfig())
		return err
	})
	if err != nil {
		return fmt.Errorf("make the consumer of jobs: %w", err)
	}
	return nil
}

// consumerConfig returns the configuration of the consumer of jobs. AckWait is the lease of a job: a job that is not
// acknowledged within AckWait is delivered again, any number of times.
func (l *Log) consumerConfig() js.ConsumerConfig {
	return js.ConsumerConfig{
		Durable:       workersName,
		AckPolicy:     js.AckExplicitPolicy,
		AckWait:       l.lease,
		MaxDeliver:    -1,
		MaxAckPending: 100_000,
	}
}

// restoreConsumer creates the consumer of the work queue again if the server has lost it, for example because a file
// was damaged. All jobs are then delivered again. restoreConsumer logs errors, and waitForDelivery calls it again.
func (l *Log) restoreConsumer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if _, err := l.jobsStream.Consumer(ctx, workersName); !errors.Is(err, js.ErrConsumerNotFound) {
		return
	}
	if _, err := l.jobsStream.CreateOrUpdateConsumer(ctx, l.consumerConfig()); err != nil {
		l.logger.Warn("the consumer of jobs could not be made again", "error", err)
		return
	}
	l.logger.Warn("the server had lost the consumer of jobs, which was made again")
}

// openStream opens the stream with the name in cfg, or creates it with cfg. For an existing stream it updates only the
// size and whether messages are republished. The replicas and their placement are the operator's choice. openStream
// sets l.clustered if the stream has replicas, and it sets the clock.
func (l *Log) openStream(ctx context.Context, cfg js.StreamConfig) (stream js.Stream, err error) {
	err = l.retrySetup(ctx, func(ctx context.Context) (err error) {
		stream, err = l.tryOpenStream(ctx, cfg)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", cfg.Name, err)
	}
	l.clock.set(stream.CachedInfo().TimeStamp)
	return stream, nil
}

// tryOpenStream makes one attempt to open or create a stream and to update it (openStream). It sets l.clustered.
func (l *Log) tryOpenStream(ctx context.Context, cfg js.StreamConfig) (js.Stream, error) {
	stream, err := l.findOrCreateStream(ctx, cfg)
	if err != nil {
		return nil, err
	}
	existing := stream.CachedInfo().Config
	l.clustered = l.clustered || existing.Replicas > 1
	// A smaller limit must not make the stream drop messages, so never set the limit below what is stored. Retention
	// deletes runs and threads until they fit, and the next call of Open sets the smaller limit.
	maxBytes := max(cfg.MaxBytes, min(existing.MaxBytes, int64(stream.CachedInfo().State.Bytes)))
	republishesAsWanted := (existing.RePublish == nil) == (cfg.RePublish == nil)
	if existing.MaxBytes == maxBytes && republishesAsWanted {
		return stream, nil
	}
	existing.MaxBytes = maxBytes
	existing.RePublish = cfg.RePublish
	return l.js.UpdateStream(ctx, existing)
}

// findOrCreateStream returns the stream with the name in cfg. If the server has no such stream, it creates it with cfg.
func (l *Log) findOrCreateStream(ctx context.Context, cfg js.StreamConfig) (js.Stream, error) {
	stream, err := l.js.Stream(ctx, cfg.Name)
	if !errors.Is(err, js.ErrStreamNotFound) {
		return stream, err
	}
	stream, err = l.js.CreateStream(ctx, cfg)
	if errors.Is(err, js.ErrStreamNameAlreadyInUse) { // another process has created the stream since
		return l.js.Stream(ctx, cfg.Name)
	}
	return stream, err
}

// isSetupRefusal reports whether the server refused a request and would refuse it again. A cluster that is starting
// answers 503, or that it lacks peers, until it is complete. A server without JetStream answers 503 permanently.
func isSetupRefusal(err error) bool {
	api, ok := errors.AsType[*js.APIError](err)
	isStarting := ok && (api.Code == 503 || api.ErrorCode == noPeersCode)
	return ok && (!isStarting || api.ErrorCode == js.JSErrCodeJetStreamNotEnabled)
}

// errNoJetStream replaces the client library's error, which only says that no responders were available.
var errNoJetStream = errors.New("JetStream does not answer there: it is off (nats-server -js), or the cluster is starting")

// retrySetup calls request until it succeeds, the server permanently refuses it, or ctx ends. If ctx ends, it returns
// the last error from before that, because a later error only says that ctx has ended. A cluster that is starting may
// lack a leader or some of its servers. retrySetup logs the first failure, because answerd does not listen before the
// log is open.
func (l *Log) retrySetup(ctx context.Context, request func(context.Context) error) error {
	var lastErr error
	for {
		attempt, cancel := context.WithTimeout(ctx, setupAttemptTimeout)
		err := request(attempt)
		cancel()
		if err == nil || isSetupRefusal(err) {
			return err
		}
		if errors.Is(err, nats.ErrNoResponders) {
			err = errNoJetStream
		}
		if lastErr != nil && ctx.Err() != nil {
			return lastErr
		}
		if lastErr == nil && l.embedded == nil {
			l.logger.Warn("event log cannot be reached yet", "reason", err.Error(), help.Events.Attr())
		}
		lastErr = err
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return lastErr
		}
	}
}
