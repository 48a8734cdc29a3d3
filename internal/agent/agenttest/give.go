package agenttest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SetResult makes result the answer of the tool "give" to the arguments that it returns. It is
// sent byte for byte, also where no library would write it so.
func (s *ToolServer) SetResult(name, result string) (args string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = make(map[string]json.RawMessage)
	}
	s.results[name] = json.RawMessage(result)
	quoted, _ := json.Marshal(map[string]string{"name": name})
	return string(quoted)
}

// recordCall records a call that has arrived.
func (s *ToolServer) recordCall(p *sdk.CallToolParamsRaw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.callCounts == nil {
		s.callCounts = make(map[string]int)
	}
	s.callCounts[p.Name]++
	s.metas = append(s.metas, maps.Clone(p.Meta))
}

// Metas returns the _meta of each call that has arrived, in that order.
func (s *ToolServer) Metas() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.metas)
}

// CallCounts returns how many calls of each tool have arrived.
func (s *ToolServer) CallCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.callCounts)
}

// rawResult is a result that is sent as it stands.
type rawResult struct {
	*sdk.CallToolResult
	raw json.RawMessage
}

func (g *rawResult) MarshalJSON() ([]byte, error) { return g.raw, nil }

func (s *ToolServer) addGiveTool(server *sdk.Server) {
	server.AddTool(&sdk.Tool{Name: "give", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{}, nil
	})
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			call, ok := r.(*sdk.CallToolRequest)
			if ok {
				s.recordCall(call.Params)
			}
			res, err := next(ctx, method, r)
			if err != nil || !ok || call.Params.Name != "give" {
				return res, err
			}
			var args struct{ Name string }
			if err := json.Unmarshal(call.Params.Arguments, &args); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return &rawResult{&sdk.CallToolResult{}, s.results[args.Name]}, nil
		}
	})
}
