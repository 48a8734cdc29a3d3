package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// pullTimeout limits how long the server keeps one pull request. A restart of the server loses
// the request, so a long one would go unanswered.
const pullTimeout = time.Second

var (
	errNoJob = errors.New("no job is waiting")
	// errNoConsumer means that nothing answers for the consumer of jobs.
	errNoConsumer = errors.New("no consumer answers")
)

// pullRequest asks the server for one message.
var pullRequest = fmt.Appendf(nil, `{"batch":1,"expires":%d}`, pullTimeout)

// maxPullInboxes bounds the inboxes that are kept for later requests.
const maxPullInboxes = 16

// delivery is a job's message that the server delivered to this instance. No other instance gets
// it for the time of a lease (the consumer's AckWait), unless it is returned earlier.
type delivery struct {
	client  *client
	subject string
	reply   string // the subject that takes acknowledgements
}

// pullDelivery waits up to pullTimeout for a job's message. A message that arrives after ctx has
// ended is returned to the queue. The client library's own Fetch would drop it, and the job
// would wait until the lease ends.
func (c *client) pullDelivery(ctx context.Context) (*delivery, error) {
	in, err := c.openPullInbox()
	if err == nil {
		err = c.write.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+jobsName+"."+workersName, in.sub.Subject, pullRequest)
	}
	if err != nil {
		return nil, unavailableError("ask for a job", err)
	}
	noAnswer := time.NewTimer(pullTimeout + attemptTimeout)
	defer noAnswer.Stop()

	answers := in.answers
	select {
	case m := <-answers:
		select {
		case c.pullInboxes <- in: // the request has its answer, so no other message comes
		default:
			_ = in.sub.Unsubscribe() // fails on a closed connection only
		}
		return c.newDelivery(m)
	case <-noAnswer.C: // the server was unreachable
	case <-ctx.Done():
	}

	// Once the server has processed the end of the subscription, no message can come.
	_ = in.sub.Unsubscribe()
	flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	_ = c.write.FlushWithContext(flushCtx) // if the flush fails, the message is delivered again after a lease

	select {
	case m := <-answers:
		if d, err := c.newDelivery(m); err == nil {
			_ = d.returnAfter(0)
		}
	default:
	}
	return nil, errNoJob
}

// pullInbox is a subscription to the answers of one pull request at a time.
type pullInbox struct {
	sub     *nats.Subscription
	answers chan *nats.Msg
}

// openPullInbox returns an inbox without a request: one that was used before, or a new one.
func (c *client) openPullInbox() (pullInbox, error) {
	select {
	case in := <-c.pullInboxes:
		return in, nil
	default:
	}
	in := pullInbox{answers: make(chan *nats.Msg, 2)}
	var err error
	in.sub, err = c.write.ChanSubscribe(c.write.NewInbox(), in.answers)
	return in, err
}

// newDelivery returns the delivery of a message, errNoJob if the message is the server's answer that no job
// waits, or errNoConsumer.
func (c *client) newDelivery(msg *nats.Msg) (*delivery, error) {
	status := msg.Header.Get("Status")
	switch {
	case status == "408" || status == "404":
		return nil, errNoJob
	case status == "503": // the server's answer for a subject that nobody serves
		return nil, errNoConsumer
	case status != "" || msg.Reply == "":
		return nil, unavailableError("ask for a job", fmt.Errorf("status %s", status))
	}
	return &delivery{client: c, subject: msg.Subject, reply: msg.Reply}, nil
}

// extendLease restarts the lease.
func (d *delivery) extendLease() error { return d.client.write.Publish(d.reply, []byte("+WPI")) }

// returnAfter makes the server deliver the message again after a delay, to any instance.
func (d *delivery) returnAfter(delay time.Duration) error {
	return d.client.write.Publish(d.reply, nakPayload(delay))
}

// returnAfterConfirmed acts like returnAfter, and waits until the server has processed it. A
// later acknowledgement or delay, by any instance, takes precedence.
func (d *delivery) returnAfterConfirmed(ctx context.Context, delay time.Duration) error {
	return d.requestReply(ctx, nakPayload(delay))
}

func nakPayload(delay time.Duration) []byte {
	if delay <= 0 {
		return []byte("-NAK")
	}
	return fmt.Appendf(nil, `-NAK {"delay":%d}`, delay.Nanoseconds())
}

// acknowledge removes the message from the queue, and returns when it is removed.
func (d *delivery) acknowledge(ctx context.Context) error { return d.requestReply(ctx, []byte("+ACK")) }

// acknowledgeEnded removes the message of a run that has ended. The server in this process needs no confirmation: if
// the process ends before, the next one finds that the run has ended, and removes the message.
func (d *delivery) acknowledgeEnded(ctx context.Context) error {
	if d.client.embedded == nil {
		return d.acknowledge(ctx)
	}
	if err := d.client.write.Publish(d.reply, []byte("+ACK")); err != nil {
		return unavailableError("acknowledge a job", err)
	}
	return nil
}

// requestReply sends an acknowledgement of the job, and waits until the server confirms it.
func (d *delivery) requestReply(ctx context.Context, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if _, err := d.client.write.RequestWithContext(ctx, d.reply, payload); err != nil {
		return unavailableError("acknowledge a job", err)
	}
	return nil
}

// enqueueJob adds a message of a job to the queue, unless the subject already has one.
func (c *client) enqueueJob(ctx context.Context, subject string) error {
	return c.publishUnordered(ctx, "enqueue a run", nats.NewMsg(subject), isDuplicate)
}

// removeJobMessage removes a message from the queue by its sequence number. Purging its subject
// would delay other jobs: on any purge, the server forgets the pending redeliveries of all
// subjects (nats-server 2.15, consumer.purge).
func (c *client) removeJobMessage(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := c.jobsStream.GetLastMsgForSubject(ctx, subject)
	if err == nil {
		err = c.jobsStream.DeleteMsg(ctx, m.Sequence)
	}
	if err != nil && !errors.Is(err, js.ErrMsgNotFound) {
		return unavailableError("remove from the log", err)
	}
	return nil
}
