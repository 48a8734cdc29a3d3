package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"answerd/internal/client"
	"answerd/internal/event"
)

// answerInterrupts asks the person about each interrupt of a suspended run and sends the answers. It sends each
// before it asks the next one, so that an answer counts even if the person stops in between. At the end of In
// the rest is declined, since nobody is left to answer and the run would wait until the questions expire.
func (s *Session) answerInterrupts(ctx context.Context, view *runView, interrupts []event.Interrupt) error {
	s.status.set("")
	for _, interrupt := range interrupts {
		for asked := false; !asked; {
			input, err := s.decide(ctx, interrupt)
			if errors.Is(err, io.EOF) {
				input, err = refuse(interrupt, "the input ended"), nil
			}
			if err != nil {
				return err
			}
			if asked, err = s.sendInput(ctx, view.start.runID, interrupt.ID, input); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendInput sends the answer to an interrupt. It returns false if answerd refuses the values, for
// example those of a form that do not fit its schema; the person can then answer again.
func (s *Session) sendInput(ctx context.Context, run, interrupt string, input map[string]any) (accepted bool, _ error) {
	input["id"] = interrupt
	err := s.client.SendInput(ctx, run, input)
	if err == nil {
		return true, nil
	}
	var p *client.Problem
	switch {
	case !errors.As(err, &p):
	case p.IsTooLate():
		s.printLine("! too late, or already answered: %s", p)
		return true, nil
	case p.Status == http.StatusBadRequest || p.Status == http.StatusUnprocessableEntity:
		s.printLine("! %s", p)
		if s.options.Interactive {
			return false, nil
		}
	}
	return false, err
}

// refuse returns the input that declines an interrupt.
func refuse(interrupt event.Interrupt, reason string) map[string]any {
	if interrupt.Kind == event.KindElicitation {
		return map[string]any{"action": "decline"}
	}
	return map[string]any{"approved": false, "reason": reason}
}

// decide returns the person's answer to an interrupt, as POST /runs/{run_id}/input takes it. With ApproveAll it
// approves calls and higher limits without a question, also at a terminal. Otherwise it declines without a terminal.
// It never fills in a form by itself, because nobody has agreed to any value of it.
func (s *Session) decide(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	switch {
	case interrupt.Kind == event.KindElicitation && !s.options.Interactive:
		s.printLine("! %s asks for input, which needs a terminal: declined", interrupt.Server)
		return refuse(interrupt, ""), nil
	case interrupt.Kind == event.KindElicitation && interrupt.Mode == "url":
		return s.openPage(ctx, interrupt)
	case interrupt.Kind == event.KindElicitation:
		return s.fillForm(ctx, interrupt)
	case s.options.ApproveAll:
		s.printLine("! %s: approved by -yes", interrupt.Message)
		return map[string]any{"approved": true}, nil
	case !s.options.Interactive:
		s.printLine("! %s: refused, because there is no terminal; -yes approves", interrupt.Message)
		return refuse(interrupt, "there was no terminal to ask at"), nil
	}
	return s.approve(ctx, interrupt)
}

// approve asks whether a call may be made, or a limit raised.
func (s *Session) approve(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	s.printLine("%s", interrupt.Message)
	choices := "[y]es, [n]o: "
	if len(interrupt.Args) > 0 {
		s.printLine("  %s", visibleJSON(string(interrupt.Args)))
		choices = "[y]es, [n]o, [e]dit the arguments: "
	}
	for {
		reply, err := s.read(ctx, choices)
		if err != nil {
			return nil, err
		}
		switch strings.ToLower(strings.TrimSpace(reply)) {
		case "y", "yes":
			return map[string]any{"approved": true}, nil
		case "n", "no":
			reason, err := s.read(ctx, "Reason, for the model (may be empty): ")
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return map[string]any{"approved": false, "reason": reason}, nil
		case "e", "edit":
			if len(interrupt.Args) == 0 {
				continue
			}
			line, err := s.read(ctx, "Arguments, as a JSON object: ")
			if err != nil {
				return nil, err
			}
			var args map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &args); err != nil || args == nil {
				s.printLine("That is not a JSON object.")
				continue
			}
			return map[string]any{"approved": true, "args": args}, nil
		}
	}
}

// openPage shows the address that a server wants the person to open.
func (s *Session) openPage(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	s.printLine("%s asks: %s", interrupt.Server, interrupt.Message)
	s.printLine("  Open %s", interrupt.URL)
	for {
		reply, err := s.read(ctx, "[d]one, or [n]o: ")
		if err != nil {
			return nil, err
		}
		switch strings.ToLower(strings.TrimSpace(reply)) {
		case "d", "done", "y", "yes":
			return map[string]any{"action": "accept"}, nil
		case "n", "no":
			return map[string]any{"action": "decline"}, nil
		}
	}
}

// fillForm asks for each field of a form. The server's schema is checked by answerd: input that
// does not fit is refused there, and the form is asked again.
func (s *Session) fillForm(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	var schema struct {
		Properties map[string]formField `json:"properties"`
		Required   []string             `json:"required"`
	}
	if err := json.Unmarshal(interrupt.Schema, &schema); err != nil {
		return nil, fmt.Errorf("decode the form: %w", err)
	}
	s.printLine("%s asks: %s", interrupt.Server, interrupt.Message)
	reply, err := s.read(ctx, "[y] answer, [n] decline: ")
	if err != nil {
		return nil, err
	}
	reply = strings.ToLower(strings.TrimSpace(reply))
	if reply != "y" && reply != "yes" && reply != "" {
		return map[string]any{"action": "decline"}, nil
	}
	content := map[string]any{}

	names := slices.SortedFunc(maps.Keys(schema.Properties), func(a, b string) int {
		// Required fields first, each group by name: a JSON object has no order.
		if ra, rb := slices.Contains(schema.Required, a), slices.Contains(schema.Required, b); ra != rb {
			if ra {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})

	for _, name := range names {
		value, err := s.askField(ctx, name, schema.Properties[name], slices.Contains(schema.Required, name))
		if err != nil {
			return nil, err
		}
		if value != nil {
			content[name] = value
		}
	}
	return map[string]any{"action": "accept", "content": content}, nil
}
