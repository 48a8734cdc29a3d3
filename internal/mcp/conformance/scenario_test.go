package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
)

// scenario is what the suite asks for.
type scenario struct {
	name     string
	protocol string // "" leaves it to the client
	calls    []toolCall
	given    authContext
	caller   auth.Identity
}

type toolCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// newScenario reads the suite's environment variables.
func newScenario(getenv func(string) string) (scenario, error) {
	s := scenario{name: getenv("MCP_CONFORMANCE_SCENARIO"), protocol: getenv("MCP_CONFORMANCE_PROTOCOL_VERSION")}
	text := getenv("MCP_CONFORMANCE_CONTEXT")
	if text == "" {
		return s, nil
	}
	var wanted struct {
		ToolCalls []toolCall `json:"toolCalls"`
		authContext
	}
	if err := json.Unmarshal([]byte(text), &wanted); err != nil {
		return s, fmt.Errorf("read MCP_CONFORMANCE_CONTEXT: %w", err)
	}
	s.calls, s.given = wanted.ToolCalls, wanted.authContext
	s.caller.Token = auth.NewSecret(wanted.IDToken)
	return s, nil
}

// play lists the tools, makes the calls that the suite asks for, and then calls every
// other tool once with arguments made from its schema, as a model would.
func (s scenario) play(ctx context.Context, client *mcp.Client) error {
	tools, err := s.list(ctx, client)
	if err != nil {
		return err
	}

	for _, st := range client.Servers() {
		if st.State != mcp.Connected {
			return fmt.Errorf("the server is %s: %s", st.State, st.Reason)
		}
	}

	calls := s.calls
	for _, t := range tools {
		if !slices.ContainsFunc(calls, func(c toolCall) bool { return c.Name == t.Original }) {
			args, err := sampleArguments(t, tools)
			if err != nil {
				return err
			}
			calls = append(calls, toolCall{t.Original, args})
		}
	}

	for _, c := range calls {
		i := slices.IndexFunc(tools, func(t catalog.Tool) bool { return t.Original == c.Name })
		if i < 0 {
			fmt.Fprintf(os.Stderr, "%s is not offered\n", c.Name)
			continue
		}
		// A call that fails is often what a scenario is about.
		res, err := person{client}.call(ctx, mcp.Call{Tool: tools[i].Name, Args: c.Arguments, Principal: s.caller})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", c.Name, res.Text())
	}
	return nil
}

// sampleArguments returns arguments that the tool's schema accepts. The suite's echo tool is given the
// schema of the tool that it is to be compared with.
func sampleArguments(t catalog.Tool, all []catalog.Tool) (json.RawMessage, error) {
	var schema struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(t.InputSchema, &schema); err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", t.Original, err)
	}
	args := make(map[string]any)
	for name, p := range schema.Properties {
		switch p.Type {
		case "integer", "number":
			args[name] = 5
		case "boolean":
			args[name] = true
		case "string":
			args[name] = "us-west1"
		}
	}
	if t.Original == "json_schema_echo" {
		for _, other := range all {
			if strings.HasSuffix(other.Original, "2020_12_tool") {
				args["schema"] = other.InputSchema
			}
		}
	}
	return json.Marshal(args)
}
