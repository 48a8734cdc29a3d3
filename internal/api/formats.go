package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// owner is whom runs of the caller belong to.
func owner(r *http.Request) event.Owner {
	id := identity(r)
	return event.Owner{Issuer: id.Issuer, Subject: id.Subject}
}

// waiting finds the caller's run of a thread that waits for what asks tells, and what of
// that it is. There is nothing of it if no run does.
func (h *Handler) waiting(r *http.Request, thread string, asks func(event.Interrupt) bool) (event.Run, []event.Interrupt, error) {
	page, err := h.Log.Runs(r.Context(), event.Filter{Owner: owner(r), ThreadID: thread, Status: event.StatusSuspended, Limit: event.MaxPage})
	if err != nil {
		return event.Run{}, nil, err
	}
	for _, run := range page.Runs {
		s, ok := run.Last.Body.(event.Suspended)
		if !ok {
			continue
		}
		asked := slices.DeleteFunc(slices.Clone(s.Interrupts), func(i event.Interrupt) bool { return !asks(i) })
		if len(asked) == 0 {
			continue
		}
		// The faces tell a run from its first event on; it is too late to find that
		// missing when the answer is given.
		_, err := h.Log.After(r.Context(), run.ID, 0)
		return run, asked, err
	}
	return event.Run{}, nil, nil
}

// untilSuspended is f, whose stream ends where the run comes to wait for a person. Where it
// did and goes on already, nothing is told of that; encoders go on as if it had not been.
func (h *Handler) untilSuspended(r *http.Request, f format) format {
	over, tell := false, f.append
	f.append = func(buf []byte, e event.Event) []byte {
		told := tell(buf, e)
		if _, ok := e.Body.(event.Suspended); ok {
			run, err := h.Log.Run(r.Context(), e.RunID)
			if err != nil || run.Last.Seq != e.Seq {
				return told[:len(buf)]
			}
			over = true
		}
		return told
	}
	f.ended = func() bool { return over }
	return f
}

// decodeOptions reads the native fields of a request of a face whose thread has a name of
// its own. prefix is where they stand in it, as a JSON pointer.
func decodeOptions(raw []byte, prefix string, req *agent.Request) error {
	thread := req.ThreadID
	err := native.DecodeOptions(raw, req)
	if err == nil && req.ThreadID != thread {
		err = &native.Invalid{Errors: []native.FieldError{{Pointer: "/answerd/thread_id", Detail: "the thread has an id in this format"}}}
	}
	if bad, ok := errors.AsType[*native.Invalid](err); ok {
		for i := range bad.Errors {
			bad.Errors[i].Pointer = prefix + bad.Errors[i].Pointer
		}
	}
	return err
}

// underPrefix makes what is wrong with a native field point at where the face has it.
func underPrefix(err error, prefix, conversation string) error {
	bad, ok := errors.AsType[*agent.InvalidError](err)
	if !ok {
		return err
	}
	pointer := bad.Pointer
	switch field, _, _ := strings.Cut(pointer[min(len(pointer), 1):], "/"); field {
	case "servers", "tools", "max_turns", "budget", "context", "prompt":
		pointer = prefix + "/answerd" + pointer
	case "question", "history":
		pointer = "/" + conversation
	}
	return &agent.InvalidError{Pointer: pointer, Detail: bad.Detail}
}
