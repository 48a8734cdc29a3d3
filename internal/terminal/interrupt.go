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

// answerInterrupts asks the user about each interrupt of a suspended run and sends the answers. It sends each answer
// before it asks the next question, so that the answer counts even if the user then stops. At the end of In it declines
// the remaining interrupts, because the run would otherwise wait until they expire.
func (s *Session) answerInterrupts(ctx context.Context, view *runView, interrupts []event.Interrupt) error {
	s.status.set("")
	for _, interrupt := range interrupts {
		if err := s.answerInterrupt(ctx, view.runID, interrupt); err != nil {
			return err
		}
	}
	return nil
}

// answerInterrupt asks the user about one interrupt of the run until answerd accepts the answer.
func (s *Session) answerInterrupt(ctx context.Context, runID string, interrupt event.Interrupt) error {
	for {
		input, err := s.decideInput(ctx, interrupt)
		if errors.Is(err, io.EOF) {
			input, err = declineInput(interrupt, "the input ended"), nil
		}
		if err != nil {
			return err
		}
		if accepted, err := s.sendInput(ctx, runID, interrupt.ID, input); accepted || err != nil {
			return err
		}
	}
}

// sendInput sets the member id of input and sends input as the answer to an interrupt. accepted is false without an
// error if answerd refuses the values, for example because they do not match a form's schema: the user can then answer
// again. If the session is not interactive, that is an error. An answer that comes too late counts as accepted:
// sendInput prints a warning, and the run continues without the answer. It may send several requests (retryRequest).
func (s *Session) sendInput(ctx context.Context, runID, interruptID string, input map[string]any) (accepted bool, _ error) {
	input["id"] = interruptID
	err := s.retryRequest(ctx, func() error { return s.client.SendInput(ctx, runID, input) })
	if err == nil {
		return true, nil
	}
	p, ok := errors.AsType[*client.Problem](err)
	switch {
	case !ok:
		return false, err
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

// declineInput returns the input that declines an interrupt. The model gets reason, except for an elicitation, whose
// answer has no reason.
func declineInput(interrupt event.Interrupt, reason string) map[string]any {
	if interrupt.Kind == event.KindElicitation {
		return map[string]any{"action": "decline"}
	}
	return map[string]any{"approved": false, "reason": reason}
}

// decideInput returns the input for POST /runs/{run_id}/input that answers an interrupt. With ApproveAll it approves
// calls and higher limits without asking. Otherwise it asks the user, or declines if the session is not interactive. It
// never fills in a form by itself, because no user would have agreed to the values.
func (s *Session) decideInput(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	switch {
	case interrupt.Kind == event.KindElicitation && !s.options.Interactive:
		s.printLine("! %s asks for input, which needs a terminal: declined", interrupt.Server)
		return declineInput(interrupt, ""), nil
	case interrupt.Kind == event.KindElicitation && interrupt.Mode == "url":
		return s.openPage(ctx, interrupt)
	case interrupt.Kind == event.KindElicitation:
		return s.fillForm(ctx, interrupt)
	case s.options.ApproveAll:
		s.printLine("! %s Approved by -yes", interrupt.Message)
		return map[string]any{"approved": true}, nil
	case !s.options.Interactive:
		s.printLine("! %s Refused, because there is no terminal; -yes approves", interrupt.Message)
		return declineInput(interrupt, "there was no terminal to ask at"), nil
	}
	return s.approve(ctx, interrupt)
}

// approve asks the user to approve a call or a higher limit of the run, and returns the input with the decision. The
// user can edit the arguments of a call and give a reason for a refusal.
func (s *Session) approve(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	s.printLine("%s", interrupt.Message)
	choices := "[y]es, [n]o: "
	if len(interrupt.Args) > 0 {
		s.printLine("  %s", visibleJSON(string(interrupt.Args)))
		choices = "[y]es, [n]o, [e]dit the arguments: "
	}
	for {
		reply, err := s.readAnswer(ctx, choices)
		if err != nil {
			return nil, err
		}
		switch strings.ToLower(strings.TrimSpace(reply)) {
		case "y", "yes":
			return map[string]any{"approved": true}, nil
		case "n", "no":
			reason, err := s.readAnswer(ctx, "Reason, for the model (may be empty): ")
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return map[string]any{"approved": false, "reason": reason}, nil
		case "e", "edit":
			if len(interrupt.Args) == 0 { // a limit, or a call without arguments
				continue
			}
			args, err := s.readArguments(ctx)
			if err != nil {
				return nil, err
			}
			if args != nil {
				return map[string]any{"approved": true, "args": args}, nil
			}
		}
	}
}

// readArguments asks the user for the arguments of a call. If the reply is not a JSON object, it says so and returns
// nil.
func (s *Session) readArguments(ctx context.Context) (map[string]json.RawMessage, error) {
	line, err := s.readAnswer(ctx, "Arguments, as a JSON object: ")
	if err != nil {
		return nil, err
	}
	var args map[string]json.RawMessage
	if json.Unmarshal([]byte(line), &args) != nil || args == nil {
		s.printLine("That is not a JSON object.")
		return nil, nil
	}
	return args, nil
}

// openPage shows the URL that an MCP server asks the user to open, waits until the user is done or declines, and
// returns the input that says which.
func (s *Session) openPage(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	s.printLine("%s asks: %s", interrupt.Server, interrupt.Message)
	s.printLine("  Open %s", interrupt.URL)
	for {
		reply, err := s.readAnswer(ctx, "[d]one, or [n]o: ")
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

// fillForm asks the user to accept or decline a form, then asks for each field, and returns the input. It checks only
// the types of values. answerd checks them against the whole schema (sendInput).
func (s *Session) fillForm(ctx context.Context, interrupt event.Interrupt) (map[string]any, error) {
	var schema struct {
		Properties map[string]formField `json:"properties"`
		Required   []string             `json:"required"`
	}
	if err := json.Unmarshal(interrupt.Schema, &schema); err != nil {
		return nil, fmt.Errorf("decode the form: %w", err)
	}
	s.printLine("%s asks: %s", interrupt.Server, interrupt.Message)
	reply, err := s.readAnswer(ctx, "[y] answer, [n] decline: ")
	if err != nil {
		return nil, err
	}
	reply = strings.ToLower(strings.TrimSpace(reply))
	if reply != "y" && reply != "yes" && reply != "" {
		return map[string]any{"action": "decline"}, nil
	}
	// The map has lost the order of the properties: ask for the required fields first, and sort by name.
	content := map[string]any{}
	for _, required := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
			if slices.Contains(schema.Required, name) != required {
				continue
			}
			value, err := s.askField(ctx, name, schema.Properties[name], required)
			if err != nil {
				return nil, err
			}
			if value != nil {
				content[name] = value
			}
		}
	}
	return map[string]any{"action": "accept", "content": content}, nil
}
