package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// pullTimeout limits how long the server keeps one pull request. It is short, because a server that restarts loses the
// request and never answers it.
const pullTimeout = time.Second

var (
	// errNoJob says that no job arrived during a pull request.
	errNoJob = errors.New("no job is waiting")
	// errNoConsumer says that the server does not have the consumer of jobs.
	errNoConsumer = errors.New("no consumer answers")
)

// pullRequest is the body of a pull request. It asks for one message and expires after pullTimeout.
var pullRequest = fmt.Appendf(nil, `{"batch":1,"expires":%d}`, pullTimeout)

// maxPullInboxes is the largest number of inboxes in client.pullInboxes, which are kept for later pull requests.
const maxPullInboxes = 16

// delivery is a job's message that the server delivered to this instance. For the length of a lease (the consumer's
// AckWait), the server delivers it to no other instance, unless this instance returns it earlier.
type delivery struct {
	client  *client
	subject string // jobPrefix or wakePrefix, followed by the run's id
	reply   string // the subject for acknowledgements
}

// pullDelivery waits up to pullTimeout for a job's message. It returns errNoJob if no message came, the server did not
// answer, or ctx ended. It returns errNoConsumer if the consumer does not exist. A message that arrives after ctx has
// ended goes back to the queue. The client library's Fetch would drop it, and the job would wait until its lease ends.
func (c *client) pullDelivery(ctx context.Context) (*delivery, error) {
	inbox, err := c.openPullInbox()
	if err == nil {
		err = c.write.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+jobsName+"."+workersName, inbox.sub.Subject, pullRequest)
	}
	if err != nil {
		return nil, unavailableError("ask for a job", err)
	}
	noAnswer := time.NewTimer(pullTimeout + attemptTimeout)
	defer noAnswer.Stop()

	select {
	case m := <-inbox.answers:
		c.keepPullInbox(inbox)
		return c.newDelivery(m)
	case <-noAnswer.C: // the server was unreachable
	case <-ctx.Done():
	}
	c.cancelPull(ctx, inbox)
	return nil, errNoJob
}

// cancelPull ends a pull request that was not answered. A message may still arrive until the server has processed the
// end of the subscription. cancelPull returns such a message to the queue.
func (c *client) cancelPull(ctx context.Context, inbox pullInbox) {
	_ = inbox.sub.Unsubscribe()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	_ = c.write.FlushWithContext(ctx) // if the flush fails, the message is delivered again after a lease
	select {
	case m := <-inbox.answers:
		if d, err := c.newDelivery(m); err == nil {
			_ = d.returnAfter(0)
		}
	default:
	}
}

// pullInbox receives the answer to a pull request. Only one request uses it at a time.
type pullInbox struct {
	sub     *nats.Subscription
	answers chan *nats.Msg
}

// openPullInbox returns an inbox that no request is using: one from an earlier request, or a new one.
func (c *client) openPullInbox() (pullInbox, error) {
	select {
	case inbox := <-c.pullInboxes:
		return inbox, nil
	default:
	}
	inbox := pullInbox{answers: make(chan *nats.Msg, 2)}
	var err error
	inbox.sub, err = c.write.ChanSubscribe(c.write.NewInbox(), inbox.answers)
	return inbox, err
}

// keepPullInbox keeps an inbox for a later request. It can be used again, because a request has only one answer.
func (c *client) keepPullInbox(inbox pullInbox) {
	select {
	case c.pullInboxes <- inbox:
	default: // enough inboxes are kept
		_ = inbox.sub.Unsubscribe() // fails on a closed connection only
	}
}

// newDelivery returns the delivery in the answer to a pull request. It returns errNoJob or errNoConsumer if the answer
// is such a status instead of a message.
func (c *client) newDelivery(msg *nats.Msg) (*delivery, error) {
	status := msg.Header.Get("Status")
	switch {
	case status == "408" || status == "404":
		return nil, errNoJob
	case status == "503": // no responders: no consumer listens on the subject of the request
		return nil, errNoConsumer
	case status != "" || msg.Reply == "":
		return nil, unavailableError("ask for a job", fmt.Errorf("status %s", status))
	}
	return &delivery{client: c, subject: msg.Subject, reply: msg.Reply}, nil
}

// extendLease restarts the lease of the message. It does not wait for the server.
func (d *delivery) extendLease() error { return d.client.write.Publish(d.reply, []byte("+WPI")) }

// returnAfter returns the message to the queue. The server delivers it again after delay, to any instance. returnAfter
// does not wait for the server.
func (d *delivery) returnAfter(delay time.Duration) error {
	return d.client.write.Publish(d.reply, nakPayload(delay))
}

// nakPayload returns the negative acknowledgement that makes the server deliver a message again after delay.
func nakPayload(delay time.Duration) []byte {
	if delay <= 0 {
		return []byte("-NAK")
	}
	return fmt.Appendf(nil, `-NAK {"delay":%d}`, delay.Nanoseconds())
}

// acknowledge removes the message from the queue and waits until it is removed.
func (d *delivery) acknowledge(ctx context.Context) error { return d.requestReply(ctx, []byte("+ACK")) }

// acknowledgeEnded removes the message of a run that has ended from the queue. With an embedded server it does not wait
// until the message is removed. If this process ends first, the next process receives the message, sees that the run
// has ended, and removes it.
func (d *delivery) acknowledgeEnded(ctx context.Context) error {
	if d.client.embedded == nil {
		return d.acknowledge(ctx)
	}
	if err := d.client.write.Publish(d.reply, []byte("+ACK")); err != nil {
		return unavailableError("acknowledge a job", err)
	}
	return nil
}

// requestReply sends payload as the acknowledgement of the message, and waits up to attemptTimeout for the server to
// confirm it.
func (d *delivery) requestReply(ctx context.Context, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if _, err := d.client.write.RequestWithContext(ctx, d.reply, payload); err != nil {
		return unavailableError("acknowledge a job", err)
	}
	return nil
}

// enqueueJob adds an empty message to the queue of jobs, unless the queue already has a message with that subject.
func (c *client) enqueueJob(ctx context.Context, subject string) error {
	return c.publishUnordered(ctx, "enqueue a run", nats.NewMsg(subject), isDuplicate)
}

// removeJobMessage removes the message with that subject from the queue of jobs, if one exists. It deletes the message
// by its sequence number. Purging the subject would delay other jobs, because on any purge the server forgets the
// pending redeliveries of all subjects (nats-server 2.15, consumer.purge).
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
