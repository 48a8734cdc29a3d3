package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// workersName is the one consumer of the jobs.
const workersName = "workers"

// pullFor is how long the server keeps one request for a job. Long ones die with a server
// that restarts.
const pullFor = time.Second

// delivery is a job's message that came to this log. The others do not get it for a lease,
// unless it is given back.
type delivery struct {
	log     *Log
	subject string
	reply   string
}

var errNoJob = errors.New("nobody's run is to be executed")

// pull waits a while for a job's message. What comes when ctx is over already is given
// back: the library's own way of asking would lose it, for a lease.
func (l *Log) pull(ctx context.Context) (*delivery, error) {
	answers := make(chan *nats.Msg, 2)
	sub, err := l.write.ChanSubscribe(l.write.NewInbox(), answers)
	if err != nil {
		return nil, unavailable("ask for a job", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	body, err := json.Marshal(map[string]any{"batch": 1, "expires": pullFor})
	if err == nil {
		err = l.write.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+jobsName+"."+workersName, sub.Subject, body)
	}
	if err != nil {
		return nil, unavailable("ask for a job", err)
	}
	late := time.NewTimer(pullFor + tryTimeout)
	defer late.Stop()
	select {
	case m := <-answers:
		return l.delivered(m)
	case <-late.C: // the server is away, or was
	case <-ctx.Done():
	}
	// Once the server has heard that nobody listens, there is no more to come.
	_ = sub.Unsubscribe()
	over, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	_ = l.write.FlushWithContext(over) // or the lease gives it back
	select {
	case m := <-answers:
		if d, err := l.delivered(m); err == nil {
			_ = d.giveBack(0)
		}
	default:
	}
	return nil, errNoJob
}

// delivered is the message that the server sent, unless that says that there is none.
func (l *Log) delivered(m *nats.Msg) (*delivery, error) {
	switch status := m.Header.Get("Status"); {
	case status == "408" || status == "404":
		return nil, errNoJob
	case status != "" || m.Reply == "":
		return nil, unavailable("ask for a job", fmt.Errorf("status %s", status))
	}
	return &delivery{log: l, subject: m.Subject, reply: m.Reply}, nil
}

// keepAlive makes the lease begin anew.
func (d *delivery) keepAlive() error { return d.log.write.Publish(d.reply, []byte("+WPI")) }

// giveBack has the message delivered again, to anybody, after a time.
func (d *delivery) giveBack(after time.Duration) error {
	return d.log.write.Publish(d.reply, notBefore(after))
}

// putOff is giveBack that returns when the server has taken it: what others say of the
// message from then on counts more.
func (d *delivery) putOff(ctx context.Context, after time.Duration) error {
	return d.tell(ctx, notBefore(after))
}

func notBefore(after time.Duration) []byte {
	if after <= 0 {
		return []byte("-NAK")
	}
	return fmt.Appendf(nil, `-NAK {"delay":%d}`, after.Nanoseconds())
}

// done takes the message out of the queue, and returns when it is out.
func (d *delivery) done(ctx context.Context) error { return d.tell(ctx, []byte("+ACK")) }

func (d *delivery) tell(ctx context.Context, what []byte) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if _, err := d.log.write.RequestWithContext(ctx, d.reply, what); err != nil {
		return unavailable("answer for a job", err)
	}
	return nil
}
