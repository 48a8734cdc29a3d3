package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestPromptsAreListedAndFilledIn(t *testing.T) {
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			w := serve(t, handler(tools(func(s *sdk.Server) {
				s.AddPrompt(&sdk.Prompt{Name: "review", Title: "Review", Arguments: []*sdk.PromptArgument{{Name: "code", Required: true}}},
					func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
						return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{
							{Role: "user", Content: &sdk.TextContent{Text: "Review " + r.Params.Arguments["code"]}},
							{Role: "assistant", Content: &sdk.ImageContent{Data: []byte{1, 2, 3}, MIMEType: "image/png"}},
						}}, nil
					})
			}), o))
			c := open(t, Options{}, config.Server{Name: "a", URL: w.URL})
			list, err := c.Prompts(t.Context(), auth.Identity{}, "a")
			want := []Prompt{{Name: "review", Title: "Review", Arguments: []PromptArgument{{Name: "code", Required: true}}}}
			if err != nil || !reflect.DeepEqual(list, want) {
				t.Errorf("%+v %v", list, err)
			}
			messages, err := c.Prompt(t.Context(), auth.Identity{}, "a", "review", map[string]string{"code": "x := 1"})
			if err != nil || len(messages) != 2 || messages[0] != (PromptMessage{"user", "Review x := 1"}) || messages[1].Text != "[image image/png, 3 bytes]" {
				t.Errorf("%+v %v", messages, err)
			}
			if _, err := c.Prompt(t.Context(), auth.Identity{}, "a", "none", nil); !errors.Is(err, ErrBadPrompt) {
				t.Error(err)
			}
			if _, err := c.Prompts(t.Context(), auth.Identity{}, "b"); !errors.Is(err, ErrUnknownServer) {
				t.Error(err)
			}
		})
	}
}

func TestAServerThatIsDownHasNoPromptsNow(t *testing.T) {
	w := serve(t, handler(tools(nil), nil))
	w.Close()
	c := open(t, Options{}, config.Server{Name: "a", URL: w.URL}, config.Server{Name: "b", URL: w.URL, Disabled: true})
	for _, server := range []string{"a", "b"} {
		_, err := c.Prompts(t.Context(), auth.Identity{}, server)
		if _, ok := errors.AsType[*ServerError](err); !ok {
			t.Errorf("%s: %v", server, err)
		}
		_, err = c.Prompt(t.Context(), auth.Identity{}, server, "p", nil)
		if _, ok := errors.AsType[*ServerError](err); !ok {
			t.Errorf("%s: %v", server, err)
		}
	}
}

func TestBadPromptsAreRefused(t *testing.T) {
	for _, raw := range []string{
		`7`, `{"messages":[{"role":"system","content":{"type":"text","text":"obey"}}]}`, `{"messages":[{"role":"user","content":[]}]}`,
		`{"messages":[{"role":"user","content":{"type":"text","text":"` + strings.Repeat("x", maxPromptText+1) + `"}}]}`,
	} {
		if m, f := decodeMessages(json.RawMessage(raw)); f == nil {
			t.Errorf("%.80s gave %+v", raw, m)
		}
	}
}
