package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	js "github.com/nats-io/nats.go/jetstream"
)

// The streams of all runs. There is never one for a run, nor a consumer for a reader:
// a server allows 1,000 consumers on a stream, and each costs it memory.
const (
	runsName  = "ANSWERD_RUNS"
	indexName = "ANSWERD_INDEX"
	jobsName  = "ANSWERD_JOBS"
)

const (
	// prepareTimeout bounds how long a cluster may take to agree that it is one.
	prepareTimeout = 30 * time.Second
	// askTimeout bounds one question meanwhile: without a leader nobody answers.
	askTimeout = 3 * time.Second
)

// storeBytes is what the streams of a log of maxBytes may take on disk in all.
func storeBytes(maxBytes int64) int64 { return maxBytes + 2*sideBytes(maxBytes) }

// sideBytes bounds the index, and the jobs.
func sideBytes(maxBytes int64) int64 { return max(maxBytes/8, 1<<20) }

// prepare makes the streams, or takes those that another process made.
func (l *Log) prepare(ctx context.Context) (err error) {
	if l.js, err = js.New(l.write); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	// Half of it, because headers and the envelope of a batch count too.
	l.maxPart = int(min(l.write.MaxPayload(), embeddedPayload)) / 2
	replicas := 1
	if len(l.write.Servers()) >= 3 {
		replicas = 3
	}
	if l.runsStream, err = l.stream(ctx, js.StreamConfig{
		Name: runsName, Subjects: []string{runRoot + ">"}, Storage: js.FileStorage, Replicas: replicas,
		MaxBytes: l.maxBytes, Discard: js.DiscardOld, AllowDirect: true, MaxConsumers: 16,
		RePublish: &js.RePublish{Source: runRoot + ">", Destination: liveRoot + ">"},
	}); err != nil {
		return err
	}
	if l.indexStream, err = l.stream(ctx, js.StreamConfig{
		// A record that is dropped would make a run unknown, so a full index refuses new
		// runs instead.
		Name: indexName, Subjects: []string{recRoot + "*", ownRoot + ">", keyRoot + "*"}, Storage: js.FileStorage, Replicas: replicas,
		MaxBytes: sideBytes(l.maxBytes), Discard: js.DiscardNew, MaxMsgsPerSubject: 1, AllowDirect: true, AllowMsgTTL: true, MaxConsumers: 16,
	}); err != nil {
		return err
	}
	if l.jobsStream, err = l.stream(ctx, js.StreamConfig{
		// At most one job of a run: a second one is refused while the first is not done.
		Name: jobsName, Subjects: []string{jobRoot + "*", wakeRoot + "*"}, Storage: js.FileStorage, Replicas: replicas,
		MaxBytes: sideBytes(l.maxBytes), Discard: js.DiscardNew, MaxMsgsPerSubject: 1, DiscardNewPerSubject: true,
		Retention: js.WorkQueuePolicy,
	}); err != nil {
		return err
	}
	if l.embedded != nil {
		// Whatever leases it knows are of a process that is dead.
		if err := l.jobsStream.DeleteConsumer(ctx, workersName); err != nil && !errors.Is(err, js.ErrConsumerNotFound) {
			return fmt.Errorf("make the consumer of jobs: %w", err)
		}
	}
	err = l.agreed(ctx, func(ctx context.Context) (err error) {
		_, err = l.jobsStream.CreateOrUpdateConsumer(ctx, js.ConsumerConfig{
			Durable: workersName, AckPolicy: js.AckExplicitPolicy, AckWait: l.lease, MaxDeliver: -1, MaxAckPending: 100_000,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("make the consumer of jobs: %w", err)
	}
	return nil
}

// agreed asks something of a cluster again until it is answered.
func (l *Log) agreed(ctx context.Context, ask func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, askTimeout)
		err := ask(try)
		cancel()
		var api *js.APIError
		if err == nil || errors.As(err, &api) && (api.Code != 503 || api.ErrorCode == js.JSErrCodeJetStreamNotEnabled) {
			return err
		}
		select {
		case <-time.After(tryInterval):
		case <-ctx.Done():
			return err
		}
	}
}

// stream makes a stream, or brings the bounds of one that is there up to date. How
// many replicas that has, and where, is its operator's business.
func (l *Log) stream(ctx context.Context, c js.StreamConfig) (s js.Stream, err error) {
	err = l.agreed(ctx, func(ctx context.Context) (err error) {
		s, err = l.js.Stream(ctx, c.Name)
		if errors.Is(err, js.ErrStreamNotFound) {
			s, err = l.js.CreateStream(ctx, c)
			if errors.Is(err, js.ErrStreamNameAlreadyInUse) { // made by another process just now
				s, err = l.js.Stream(ctx, c.Name)
			}
		}
		if err != nil {
			return err
		}
		kept := s.CachedInfo().Config
		l.clustered = l.clustered || kept.Replicas > 1
		if kept.MaxBytes == c.MaxBytes {
			return nil
		}
		kept.MaxBytes = c.MaxBytes
		s, err = l.js.UpdateStream(ctx, kept)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", c.Name, err)
	}
	return s, nil
}
