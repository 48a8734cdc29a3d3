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
	// setupTimeout is how long Open waits until the cluster has made the streams.
	setupTimeout = 30 * time.Second
	// setupAttemptTimeout bounds one request to make a stream or a consumer: a cluster without a leader does not
	// answer.
	setupAttemptTimeout = 3 * time.Second
)

// openStreams opens the streams and the consumer of jobs, and makes those that are missing. It sets the fields of
// client for them, and maxPart.
func (l *Log) openStreams(ctx context.Context) (err error) {
	// The library bounds the messages of send that are not acknowledged. Without this timeout, it would count a message
	// that is never acknowledged forever.
	if l.js, err = js.New(l.write, js.WithPublishAsyncTimeout(createTimeout)); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	// Half of the server's limit, because headers and the encoding of a batch count too.
	l.maxPart = int(min(l.write.MaxPayload(), embedded.MaxPayload)) / 2
	replicas := 1 // of new streams
	if len(l.write.Servers()) >= 3 {
		replicas = 3
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
// that it arrives live at all instances. A log that is alone does not need that, and republishing costs half as much as
// storing.
func (l *Log) runsConfig(replicas int) js.StreamConfig {
	config := js.StreamConfig{
		Name: runsName, Subjects: []string{runPrefix + ">"}, Storage: js.FileStorage, Replicas: replicas,
		MaxBytes: maxRunsBytes(l.maxBytes), Discard: js.DiscardOld, AllowDirect: true, MaxConsumers: 16,
	}
	if !l.alone {
		config.RePublish = &js.RePublish{Source: runPrefix + ">", Destination: livePrefix + ">"}
	}
	return config
}

// indexConfig returns the configuration of the stream with the records of runs. A full index refuses new runs. If it
// dropped old records instead, their runs would become unknown to their owners.
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
		MaxConsumers:      16,
	}
}

// jobsConfig returns the configuration of the stream with jobs and wake messages. A subject holds at most one message:
// a second one is refused until the first is acknowledged.
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

// valuesConfig returns the configuration of the stream with the values of package values. A subject holds one message,
// the current value of its key. A full stream refuses new values instead of dropping old ones.
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
		MaxConsumers:      16,
	}
}

// openThreadStreams opens the streams of threads. The stream of runs may exceed its part of maxBytes, because earlier
// versions of answerd used all of maxBytes for runs. Until enough runs were deleted, the stream of turns gets less
// space instead.
func (l *Log) openThreadStreams(ctx context.Context, heads, turns js.StreamConfig) (err error) {
	excess := l.runsStream.CachedInfo().Config.MaxBytes - maxRunsBytes(l.maxBytes)
	turns.MaxBytes = max(turns.MaxBytes-max(excess, 0), 1<<20)
	if l.headsStream, err = l.openStream(ctx, heads); err != nil {
		return err
	}
	l.turnsStream, err = l.openStream(ctx, turns)
	return err
}

// openThreads makes the store of the threads, as l.threads and l.Threads, and loads them. It repeats a failed load
// until setupTimeout has passed, because streams that were just made may not answer yet.
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

// threadsServer returns the functions with which package threads uses the connections and timeouts of this log.
func (l *Log) threadsServer() threads.Server {
	streams := map[string]js.Stream{threads.HeadsStream: l.headsStream, threads.TurnsStream: l.turnsStream}
	return threads.Server{
		Publish: func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error) {
			return l.publishAfter(ctx, stream, m, last, createTimeout)
		},
		PublishRemoval: l.publishRemoval,
		ReadLast: func(ctx context.Context, stream, subject string) (*threads.Message, error) {
			m, err := l.readLastFromLeader(ctx, stream, subject)
			if err != nil || m == nil {
				return nil, err
			}
			return new(m.toThreads()), nil
		},
		ReadEach: func(ctx context.Context, stream string, subjects []string) (map[string]threads.Message, error) {
			found, err := l.readLastOfEach(ctx, stream, subjects)
			bySubject := make(map[string]threads.Message, len(found))
			for subject, m := range found {
				bySubject[subject] = m.toThreads()
			}
			return bySubject, err
		},
		ReadFrom: func(ctx context.Context, stream, subject string, from uint64) (all []threads.Message, more bool, err error) {
			found, more, err := l.readBatch(ctx, stream, directGet{Next: subject, From: from})
			for _, m := range found {
				all = append(all, m.toThreads())
			}
			return all, more, err
		},
		Purge: func(ctx context.Context, stream, subject string) error {
			return purgeSubject(ctx, streams[stream], subject)
		},
		Delete: func(ctx context.Context, stream string, pos uint64) error {
			return deleteMessage(ctx, streams[stream], pos)
		},
		Usage: func(ctx context.Context, stream string) (used, limit int64, err error) {
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

// followThreadsLoop calls threads.Store.Follow until Close, again after a panic.
func (l *Log) followThreadsLoop() {
	for l.ctx.Err() == nil {
		func() {
			defer l.recoverPanic("follow the threads")
			l.threads.Follow(l.ctx)
		}()
	}
}

// openConsumer makes the consumer of the work queue, from which all instances claim jobs, or updates its configuration.
// In an embedded log it first removes the consumer of the process before, so that all jobs are delivered at once.
func (l *Log) openConsumer(ctx context.Context) error {
	if l.embedded != nil {
		// The consumer has the leases of a process that has ended.
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

// restoreConsumer makes the consumer of the work queue again if the server has lost it, for example because a file was
// damaged. All jobs are then delivered again. Errors are logged; the caller tries again.
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

// openStream makes a stream with cfg, or opens the existing stream. Of an existing one it updates only the size and
// whether messages are republished: the replicas and their placement are the operator's choice. It sets l.clustered if
// the stream has replicas, and the clock.
func (l *Log) openStream(ctx context.Context, cfg js.StreamConfig) (stream js.Stream, err error) {
	err = l.retrySetup(ctx, func(ctx context.Context) (err error) {
		if stream, err = l.findOrCreateStream(ctx, cfg); err != nil {
			return err
		}
		existing := stream.CachedInfo().Config
		l.clustered = l.clustered || existing.Replicas > 1
		// A smaller limit must not make the stream drop messages, so the limit stays at least what is stored. Retention
		// deletes runs and threads until they fit, and the next call of Open sets the smaller limit.
		maxBytes := max(cfg.MaxBytes, min(existing.MaxBytes, int64(stream.CachedInfo().State.Bytes)))
		if existing.MaxBytes == maxBytes && (existing.RePublish == nil) == (cfg.RePublish == nil) {
			return nil
		}
		existing.MaxBytes = maxBytes
		existing.RePublish = cfg.RePublish
		stream, err = l.js.UpdateStream(ctx, existing)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", cfg.Name, err)
	}
	l.clock.set(stream.CachedInfo().TimeStamp)
	return stream, nil
}

// findOrCreateStream returns the stream with the name in cfg. If the server has none, it makes the stream with cfg.
func (l *Log) findOrCreateStream(ctx context.Context, cfg js.StreamConfig) (js.Stream, error) {
	stream, err := l.js.Stream(ctx, cfg.Name)
	if !errors.Is(err, js.ErrStreamNotFound) {
		return stream, err
	}
	stream, err = l.js.CreateStream(ctx, cfg)
	if errors.Is(err, js.ErrStreamNameAlreadyInUse) { // another process has made the stream since
		return l.js.Stream(ctx, cfg.Name)
	}
	return stream, err
}

// isSetupRefusal reports whether a server has refused a request and would refuse it again. A cluster that is starting
// answers 503, or that it lacks peers, until it is complete. A server without JetStream answers 503 too, for good.
func isSetupRefusal(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	isStarting := api.Code == 503 || api.ErrorCode == noPeersCode
	return !isStarting || api.ErrorCode == js.JSErrCodeJetStreamNotEnabled
}

// errNoJetStream replaces the client library's error, which says only that there were no responders.
var errNoJetStream = errors.New("JetStream does not answer there: it is off (nats-server -js), or the cluster is starting")

// retrySetup calls request until it succeeds, a server refuses it for good, or ctx ends. It then returns the last error
// of a request that ended before ctx, because a later one only says that ctx has ended. A cluster that is starting may
// lack a leader, or some of its servers. retrySetup logs the first failure, since the service does not listen before
// the log is open.
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
