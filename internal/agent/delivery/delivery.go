// Package delivery informs other services that a run has ended. For every run, it sends one signed POST to the
// operator's service (RUN_WEBHOOK_URL), and one to the question's callback.
//
//	d, err := delivery.New(delivery.Options{URL: "https://crm.example.com/runs", Secret: secret, Log: log})
//	ready, err := d.Prepare(ctx, run, agent, callback, end) // before the terminal event is appended
//	ready.Send()                                            // once it is in the log
//
//	if delivery.IsDelivery(job.Run()) {
//		d.Resume(job) // a job that Log.Claim has returned
//	}
//	d.Drain(ctx)
//
// A delivery is stored in the event log as a run of its own, with one event and a job, before the terminal event of the
// run that it is about. So it is as durable as that event. Between attempts the job is parked, and the process that
// claims it makes the next attempt. If a process dies after it stored the delivery but before it appended the terminal
// event, the run may end differently; so a claimed delivery is compared with the run's end in the log.
//
// An attempt succeeds if the receiver answers 2xx. Failed attempts are repeated for a day: the first time within 5 s,
// then after about the time that has passed so far, but at most 10 minutes. All attempts for one run and receiver have
// the same webhook-id. A receiver may get a delivery twice, because a response was lost or a process died.
//
// Everything is limited: the waiting deliveries and their bytes, the concurrent attempts in total and per receiver, the
// time of an attempt, and what is read of a response. A slow receiver does not delay the others.
package delivery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"answerd/internal/auth"
	"answerd/internal/event"
)

const (
	// lifetime is how long attempts are made for a delivery.
	lifetime = 24 * time.Hour
	// firstDelay is the delay before the second attempt, and maxDelay the longest delay before later ones. Each delay
	// is shortened or extended by up to a quarter, at random.
	firstDelay = 2 * time.Second
	maxDelay   = 10 * time.Minute
	// endDelay is how long a delivery is parked if its run has no terminal event yet.
	endDelay = 5 * time.Second
	// newerDelay is how long a delivery is parked that only a newer version of answerd can read.
	newerDelay = 15 * time.Second
	// maxAttempts is how many attempts may be in flight, and maxAttemptsPerReceiver how many to one origin.
	maxAttempts            = 64
	maxAttemptsPerReceiver = 8
	// maxWaiting is how many deliveries may wait, and countInterval is how often they are counted in the log.
	maxWaiting    = 10_000
	countInterval = 30 * time.Second
	// logTimeout limits each use of the log.
	logTimeout = 30 * time.Second
	// idPrefix begins the ids of the runs that store deliveries.
	idPrefix = "dlv_"
	// recordVersion changes when older processes can no longer read the records of newer ones.
	recordVersion = 1
)

// deliveryOwner owns the runs that store deliveries. No token can have this issuer.
var deliveryOwner = event.Owner{Issuer: "\x00answerd", Subject: "delivery"}

// IsDelivery reports whether the run with this id stores a delivery.
func IsDelivery(run string) bool { return strings.HasPrefix(run, idPrefix) }

// Options configure a Deliverer. Log and Secret are required, and so is URL or CallbackOrigins.
type Options struct {
	URL string // gets a POST for every run; https, or http to a loopback address; "" means none
	// CallbackOrigins are the origins allowed for a question's callback, in lower case and without the default port.
	CallbackOrigins []string
	// PrivateCallbacks allows callbacks to private addresses, including those that a public name resolves to.
	PrivateCallbacks bool
	Secret           auth.Secret // signs every POST
	// CurrentSecret, if set, returns the secret for each POST, and Secret is ignored.
	CurrentSecret func() auth.Secret
	Log           event.Log
	// MaxBytes is how many bytes all waiting deliveries may have; 0 means 32 MiB.
	MaxBytes int64
	// Local means that the log ends with this process. No other process can then make the remaining deliveries, so
	// Drain waits for them.
	Local bool

	Meter  metric.Meter // nil records nothing
	Logger *slog.Logger // nil logs nothing
}

// Deliverer makes deliveries. Its methods may be called concurrently. A nil *Deliverer delivers nothing.
type Deliverer struct {
	Options
	sender  *sender
	results metric.Int64Counter

	ctx      context.Context // the context of attempts; Drain cancels it
	cancel   context.CancelFunc
	draining context.Context // ends when Drain begins; then no attempt begins unless Local is set
	stop     context.CancelFunc
	work     sync.WaitGroup // the goroutines of attempts
	counting sync.WaitGroup // the goroutine of countLoop

	countMu sync.Mutex // protects the next three fields
	waiting tally      // in the log: the last count, plus what this process has changed since
	storing tally      // deliveries being stored at the moment
	added   tally      // all deliveries that this process has ever stored

	mu       sync.Mutex     // protects the fields below
	closed   bool           // no further attempt may begin
	attempts map[string]int // attempts in flight, by the receiver's origin
	// local contains the deliveries whose jobs this process holds, by the id of the run that stores them. With Local it
	// also contains parked deliveries, since no other process can make them.
	local map[string]bool
	idle  chan struct{} // closed when local becomes empty; nil while Drain does not wait for that
}

// record is the stored form of a delivery.
type record struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`                 // the webhook-id that the receiver sees
	Callback string `json:"callback,omitempty"` // the question's callback; "" means Options.URL, which may contain a secret
	Created  int64  `json:"created"`            // in ms, by the log's clock
	End      string `json:"end"`                // the fingerprint of the terminal event
	Body     body   `json:"body"`
}

// New returns a Deliverer with the defaults of Options applied, and starts its countLoop, which Drain ends.
func New(opts Options) (*Deliverer, error) {
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	opts.Meter = cmp.Or[metric.Meter](opts.Meter, metricnoop.NewMeterProvider().Meter(""))
	opts.MaxBytes = cmp.Or(opts.MaxBytes, 32<<20)
	if opts.CurrentSecret == nil {
		opts.CurrentSecret = func() auth.Secret { return opts.Secret }
	}
	deliverer := &Deliverer{Options: opts, sender: newSender(opts), attempts: make(map[string]int), local: make(map[string]bool)}
	var err error
	deliverer.results, err = opts.Meter.Int64Counter("answerd.deliveries", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts to tell a receiver that a run has ended: delivered, failed (it is tried again) or given_up."))
	if err != nil {
		return nil, fmt.Errorf("create the metric of deliveries: %w", err)
	}
	for _, outcome := range []string{"delivered", "failed", "given_up"} {
		deliverer.results.Add(context.Background(), 0, outcomeAttribute(outcome)) // so that alerts see the first increase
	}
	_, err = opts.Meter.Int64ObservableGauge("answerd.deliveries.waiting", metric.WithUnit("{delivery}"),
		metric.WithDescription("Deliveries that wait for their next attempt, of all processes that share the event log."),
		metric.WithInt64Callback(func(_ context.Context, observe metric.Int64Observer) error {
			observe.Observe(max(deliverer.waitingTally().count, 0))
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("create the metric of deliveries: %w", err)
	}
	deliverer.ctx, deliverer.cancel = context.WithCancel(context.Background())
	deliverer.draining, deliverer.stop = context.WithCancel(context.Background())
	deliverer.counting.Go(deliverer.countLoop)
	return deliverer, nil
}

// outcomeAttribute returns the outcome label of the metric answerd.deliveries: delivered, failed or given_up.
func outcomeAttribute(outcome string) metric.AddOption {
	return metric.WithAttributes(attribute.String("outcome", outcome))
}

// AllowsCallback reports whether a question may have url as its callback. A nil Deliverer allows none.
func (d *Deliverer) AllowsCallback(url string) bool {
	if d == nil {
		return false
	}
	origin, ok := originOf(url)
	return ok && slices.Contains(d.CallbackOrigins, origin)
}

// sizeKey is the metadata key under which a delivery's run has its size in bytes.
const sizeKey = "bytes"

// fingerprint returns a hash of a terminal event's type and text. It distinguishes the end that a delivery is about
// from another end that the run got in another process. Ends with the same text are treated as the same.
func fingerprint(end event.Body) string {
	text := string(end.Type())
	switch b := end.(type) {
	case event.FinalAnswer:
		text += "\n" + b.Answer
	case event.RunError:
		text += "\n" + b.Code + "\n" + b.Message
	case event.Cancelled:
		text += "\n" + b.Reason
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
