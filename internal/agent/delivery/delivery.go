// Package delivery tells other services that a run has ended: one signed POST to the operator's
// service (RUN_WEBHOOK_URL) for every run, and one to the callback of the question.
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
// A delivery is stored as a run of its own in the event log, with one event and a job, before the terminal event of the
// run that it is about. So it is as durable as that event. Between attempts the job is parked, and the process
// that claims it makes the next attempt. A process that dies between the two appends leaves a delivery about an end that may
// never come, so a claimed delivery is compared with the end that the log has.
//
// An attempt succeeds with a 2xx. Others follow for a day: the first within 5 s, then after about the
// time that has passed so far, 10 minutes at most. All attempts of one run at one receiver have the same
// webhook-id. A receiver may get a delivery twice: if an answer is lost, or a process dies.
//
// Everything is bounded: the deliveries that wait and their bytes, the attempts at a time in all and of one receiver,
// the time of an attempt, and what is read of an answer. A receiver that is slow delays no other one.
package delivery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"answerd/internal/auth"
	"answerd/internal/event"
)

const (
	// lifetime is how long a delivery is tried.
	lifetime = 24 * time.Hour
	// firstDelay precedes the second attempt, and maxDelay bounds the delay before any other one. Each
	// is shortened or extended by a quarter at most, at random.
	firstDelay = 2 * time.Second
	maxDelay   = 10 * time.Minute
	// endDelay is how long a delivery waits for the terminal event of its run.
	endDelay = 5 * time.Second
	// newerDelay is how long a delivery that this process cannot read waits for a newer process to claim it.
	newerDelay = 15 * time.Second
	// maxAttempts bounds the attempts at a time, and maxAttemptsPerReceiver those of one origin.
	maxAttempts            = 64
	maxAttemptsPerReceiver = 8
	// maxWaiting bounds the deliveries that wait, and countInterval is how often they are counted in the log.
	maxWaiting    = 10_000
	countInterval = 30 * time.Second
	// logTimeout bounds a request to the log.
	logTimeout = 30 * time.Second
	// idPrefix begins the ids of the runs that deliveries are stored as.
	idPrefix = "dlv_"
	// recordVersion changes when an older process cannot read the record of a newer one.
	recordVersion = 1
)

// deliveryOwner owns the runs that deliveries are stored as. No caller's token has this issuer.
var deliveryOwner = event.Owner{Issuer: "\x00answerd", Subject: "delivery"}

// IsDelivery reports whether a run of the log is a delivery.
func IsDelivery(run string) bool { return strings.HasPrefix(run, idPrefix) }

// Options configure a Deliverer. Log and Secret are required, and URL or CallbackOrigins.
type Options struct {
	URL string // receives every run; https, or http on the loopback address; "" means none
	// CallbackOrigins are the origins that a question's callback may have, in lower case and without the default port.
	CallbackOrigins []string
	// PrivateCallbacks lets callbacks go to private addresses, also where DNS names them.
	PrivateCallbacks bool
	Secret           auth.Secret // signs every POST
	// CurrentSecret, if set, returns the secret for each POST in place of Secret.
	CurrentSecret func() auth.Secret
	Log           event.Log
	// MaxBytes bounds the deliveries that wait, in all; 0 means 32 MiB.
	MaxBytes int64
	// Local means that the log ends with the process, so Drain waits for deliveries that another
	// process could not make.
	Local bool

	Meter  metric.Meter // nil records nothing
	Logger *slog.Logger // nil logs nothing
}

// Deliverer makes deliveries. Its methods may be called concurrently. A nil Deliverer delivers nothing.
type Deliverer struct {
	Options
	sender  *sender
	results metric.Int64Counter

	ctx      context.Context // of attempts; ends in Drain
	cancel   context.CancelFunc
	draining context.Context // ends when Drain begins; no attempt begins then unless Local
	stop     context.CancelFunc
	work     sync.WaitGroup // the goroutines of attempts
	counting sync.WaitGroup // the goroutine of countLoop

	waiting, bytes atomic.Int64 // in the log, as counted last, and what has changed here since
	countMu        sync.Mutex   // guards changes of waiting and bytes, and the next two lines
	storing        tally        // deliveries that are being stored
	added          tally        // deliveries that this process has ever stored

	mu       sync.Mutex     // protects the fields below
	closed   bool           // Drain waits for the last attempts: no other one begins
	attempts map[string]int // at present, by origin
	// local has the deliveries whose jobs this process has, by the run that they are stored as. With Local
	// also those that are parked, since no other process can make them.
	local map[string]bool
	idle  chan struct{} // closed when local is empty; nil while nobody waits
}

// record is a delivery as it is stored.
type record struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`                 // of the receiver's point of view: webhook-id
	Callback string `json:"callback,omitempty"` // of the question; "" for Options.URL, which may contain a secret
	Created  int64  `json:"created"`            // ms, of the log's clock
	End      string `json:"end"`                // fingerprint of the terminal event
	Body     body   `json:"body"`
}

// New returns a Deliverer and starts its countLoop, which Drain ends. It also applies the defaults of Options.
func New(opts Options) (*Deliverer, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
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
		deliverer.results.Add(context.Background(), 0, outcomeAttribute(outcome)) // an alert needs a zero to rise from
	}
	_, err = opts.Meter.Int64ObservableGauge("answerd.deliveries.waiting", metric.WithUnit("{delivery}"),
		metric.WithDescription("Deliveries that wait for their next attempt, of all processes that share the event log."),
		metric.WithInt64Callback(func(_ context.Context, observe metric.Int64Observer) error {
			observe.Observe(max(deliverer.waiting.Load(), 0))
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

// outcomeAttribute returns the label of the metric answerd.deliveries: delivered, failed or given_up.
func outcomeAttribute(outcome string) metric.AddOption {
	return metric.WithAttributes(attribute.String("outcome", outcome))
}

// AllowsCallback reports whether a question may have this callback.
func (d *Deliverer) AllowsCallback(url string) bool {
	if d == nil {
		return false
	}
	origin, ok := originOf(url)
	for _, allowed := range d.CallbackOrigins {
		if ok && origin == allowed {
			return true
		}
	}
	return false
}

// sizeKey names the metadata of a delivery's run that has its size in bytes.
const sizeKey = "bytes"

// fingerprint identifies a terminal event, by its type and text. It tells the end that a delivery is about from
// the one that the run got in another process; ends with the same text need not be told apart.
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
