package llm

// Profile is what the operator says about one model that is served. The zero value
// of everything but ID is a default.
type Profile struct {
	ID          string      `json:"id"`           // what requests name
	Upstream    string      `json:"upstream"`     // the endpoint's own id for it; "" is ID
	ToolCalling ToolCalling `json:"tool_calling"` // "" is the setting's
	// ContextTokens is the model's window, prompt and answer together; 0 is unknown,
	// and nothing is left out of a conversation.
	ContextTokens   int64  `json:"context_tokens"`
	MaxOutputTokens int64  `json:"max_output_tokens"` // asked for in every request; 0 leaves it to the endpoint
	Images          bool   `json:"images"`            // it takes images
	Audio           bool   `json:"audio"`             // it takes audio
	Price           *Price `json:"price"`             // nil is unknown
}

// Price is what tokens of a model cost, in the operator's currency.
type Price struct {
	Input  float64 `json:"input_per_million"`
	Output float64 `json:"output_per_million"`
}

// ToolCalling is how a model calls tools.
type ToolCalling string

// The ways of tool calling.
const (
	NativeCalling ToolCalling = "native"
	TextCalling   ToolCalling = "text"
)
