package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

func TestPromptsAreListedAndFilledIn(t *testing.T) {
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			w := serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
				s.AddPrompt(&sdk.Prompt{Name: "review", Title: "Review", Arguments: []*sdk.PromptArgument{{Name: "code", Required: true}}},
					func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
						return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{
							{Role: "user", Content: &sdk.TextContent{Text: "Review " + r.Params.Arguments["code"]}},
							{Role: "assistant", Content: &sdk.ImageContent{Data: []byte{1, 2, 3}, MIMEType: "image/png"}},
						}}, nil
					})
			}), o))

			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
			list, err := c.Prompts(t.Context(), auth.Identity{}, "a")
			want := PromptList{Prompts: []Prompt{{Name: "review", Title: "Review", Arguments: []PromptArgument{{Name: "code", Required: true}}}}}
			if err != nil || !reflect.DeepEqual(list, want) {
				t.Errorf("got the prompts %+v, %v, want %+v", list, err, want)
			}
			messages, err := c.Prompt(t.Context(), auth.Identity{}, "a", "review", map[string]string{"code": "x := 1"})
			if err != nil || len(messages) != 2 || messages[0] != (PromptMessage{"user", "Review x := 1"}) || messages[1].Text != "[image image/png, 3 bytes]" {
				t.Errorf("got the messages %+v, %v, want the text and a placeholder of the image", messages, err)
			}
			if _, err := c.Prompt(t.Context(), auth.Identity{}, "a", "none", nil); !errors.Is(err, ErrBadPrompt) {
				t.Errorf("got %v, want ErrBadPrompt", err)
			}
			if _, err := c.Prompts(t.Context(), auth.Identity{}, "b"); !errors.Is(err, ErrUnknownServer) {
				t.Errorf("got %v, want ErrUnknownServer", err)
			}
		})
	}
}

// The Python SDK answers a wrong name and missing arguments with the code 0, as it does everything else that fails in
// prompts/get: only the text tells them apart.
func TestPromptThatPythonServersRefuseIsBad(t *testing.T) {
	for message, wantBad := range map[string]bool{
		"Error rendering prompt review: 1 validation error for review\nx\n  Unexpected keyword argument": true, // Python SDK 1
		"Unknown prompt: none":                                                           true, // Python SDK 1 and 2
		"Missing required arguments: {'code'}":                                           true,
		"Error rendering prompt 'review': Missing required arguments: {'code'}":          true, // FastMCP 3
		"Error rendering prompt review: the database has an unknown prompt in its table": false,
	} {
		s := newToolServer(func(s *sdk.Server) {
			s.AddPrompt(&sdk.Prompt{Name: "review"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
				return nil, &jsonrpc.Error{Code: 0, Message: message}
			})
		})
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, s, nil)).URL})
		if _, err := c.Prompt(t.Context(), auth.Identity{}, "a", "review", nil); errors.Is(err, ErrBadPrompt) != wantBad {
			t.Errorf("%s: got %v, want ErrBadPrompt: %t", message, err, wantBad)
		}
	}
}

func TestPromptOfAServerWithoutPromptsIsRefused(t *testing.T) {
	s := newToolServer(func(s *sdk.Server) {
		s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
				if method == "prompts/get" {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
				}
				return next(ctx, method, r)
			}
		})
	})
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, s, nil)).URL})
	if _, err := c.Prompt(t.Context(), auth.Identity{}, "a", "review", nil); !errors.Is(err, ErrBadPrompt) {
		t.Errorf("got %v, want ErrBadPrompt", err)
	}
}

// A list of small pages is read to its end.
func TestPromptsOnManyPagesAreAllListed(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "a", Version: "1"}, &sdk.ServerOptions{PageSize: 2})
	for i := range 40 {
		s.AddPrompt(&sdk.Prompt{Name: fmt.Sprint("p", i)}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) { return nil, nil })
	}
	w := serveHTTP(t, streamableHandler(t, s, nil))

	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
	if list, err := c.Prompts(t.Context(), auth.Identity{}, "a"); err != nil || len(list.Prompts) != 40 || list.Omitted != 0 {
		t.Errorf("got %d prompts, %d left out, %v, want 40, 0 and no error", len(list.Prompts), list.Omitted, err)
	}
}

// A list of prompts that may lack some says so, and so does one line of the log.
func TestPromptsThatAreLeftOutAreReported(t *testing.T) {
	many := strings.Repeat(`{"name":"p"},`, maxPrompts)
	for _, test := range []struct {
		name, page string
		kept       int
		reason     string
	}{
		{"a repeated cursor", `{"prompts":[{"name":"p"}],"nextCursor":"c"}`, 2, "repeats a cursor"},
		{"too many", `{"prompts":[` + many + `{"name":"p"}]}`, maxPrompts, "is too large"},
		{"more pages", `{"prompts":[` + strings.TrimSuffix(many, ",") + `],"nextCursor":"c"}`, maxPrompts, "is too large"},
		{"not valid", `{"prompts":[{"name":"p"},{"name":""}]}`, 1, "MCP prompt left out"},
	} {
		var log syncBuffer
		s := &scriptedServer{before: answersMethod("prompts/list", test.page)}
		c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		list, err := c.Prompts(t.Context(), auth.Identity{}, "a")
		if err != nil || len(list.Prompts) != test.kept || list.Omitted != 1 {
			t.Errorf("%s: got %d prompts, %d left out, %v, want %d, 1 and no error", test.name, len(list.Prompts), list.Omitted, err, test.kept)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, test.reason) {
			t.Errorf("%s: got the log %s, want one warning with %q", test.name, text, test.reason)
		}
	}
}

func TestPromptsOfAServerThatIsDownFail(t *testing.T) {
	w := serveHTTP(t, streamableHandler(t, newToolServer(nil), nil))
	w.Close()
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL}, config.Server{Name: "b", URL: w.URL, Disabled: true})
	for _, server := range []string{"a", "b"} {
		_, err := c.Prompts(t.Context(), auth.Identity{}, server)
		if _, ok := errors.AsType[*ServerError](err); !ok {
			t.Errorf("%s: got %v, want a *ServerError", server, err)
		}
		_, err = c.Prompt(t.Context(), auth.Identity{}, server, "p", nil)
		if _, ok := errors.AsType[*ServerError](err); !ok {
			t.Errorf("%s: %v, want a ServerError", server, err)
		}
	}
}

func TestPromptWithBadMessagesIsRefused(t *testing.T) {
	for _, raw := range []string{
		`7`, `{"messages":[{"role":"system","content":{"type":"text","text":"obey"}}]}`, `{"messages":[{"role":"user","content":[]}]}`,
		`{"messages":[{"role":"user","content":{"type":"image","mimeType":"image/png"}}]}`,
		`{"messages":[{"role":"user","content":{"type":"text","text":"` + strings.Repeat("x", maxPromptText+1) + `"}}]}`,
	} {
		if m, f := decodeMessages(json.RawMessage(raw)); f == nil {
			t.Errorf("decodeMessages(%.80s) = %+v, want a failure", raw, m)
		}
	}
}
