package llm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/auth/strictjson"
)

// Profile describes one available model, as the operator configured it in MODELS_FILE. Only ID is required.
type Profile struct {
	ID          string      `json:"id"`           // the model's name in requests to answerd
	Upstream    string      `json:"upstream"`     // the model's id at the endpoint; "" means ID
	ToolCalling ToolCalling `json:"tool_calling"` // "" means the setting LLM_TOOL_CALLING
	// ContextTokens is the size of the model's context window, for prompt and answer together. 0 means that it is
	// unknown. Conversations are then not shortened before a request.
	ContextTokens   int64  `json:"context_tokens"`
	MaxOutputTokens int64  `json:"max_output_tokens"` // sent with every request; 0 leaves it to the endpoint
	Images          bool   `json:"images"`            // the model takes images
	Audio           bool   `json:"audio"`             // the model takes audio
	PDF             bool   `json:"pdf"`               // the model takes PDF documents
	Price           *Price `json:"price"`             // nil if unknown
	// StructuredOutput says how the model is asked for JSON that matches a schema; "" means native.
	StructuredOutput StructuredOutput `json:"structured_output"`

	// An endpoint for this model only, with its own key; "" means the endpoint and key of the settings.
	BaseURL    string            `json:"base_url"`     // up to and including /v1; its query is kept
	APIKey     string            `json:"api_key"`      // sent as a bearer token; "" sends none
	APIKeyFile string            `json:"api_key_file"` // used instead of api_key
	Headers    map[string]string `json:"headers"`      // sent with every request
	Query      map[string]string `json:"query"`        // query parameters for every request
	TLS        TLSFiles          `json:"tls"`
	// Fallback lists other models of the file. They are asked, in this order, if this model cannot be reached, is rate
	// limited, or fails with 5xx before the first part of its answer.
	Fallback []string `json:"fallback"`
}

// TLSFiles names PEM files for connections to a model's endpoint. "" means no file.
type TLSFiles struct {
	CAFile   string `json:"ca_file"`   // root certificates, instead of the system's
	CertFile string `json:"cert_file"` // client certificate
	KeyFile  string `json:"key_file"`  // the certificate's key
}

// Price is the price of a model's tokens, in the operator's currency.
type Price struct {
	Input  float64 `json:"input_per_million"`
	Output float64 `json:"output_per_million"`
}

// CostOf returns the cost of the given numbers of tokens, rounded to 1e-12. It returns nil if p is nil.
func (p *Price) CostOf(input, output int64) *float64 {
	if p == nil {
		return nil
	}
	// Prices are per million tokens. Rounding hides that binary fractions are not exact.
	cost := math.Round(float64(input)*p.Input*1e6+float64(output)*p.Output*1e6) / 1e12
	return &cost
}

// ToolCalling says how a model calls tools.
type ToolCalling string

// The ways of tool calling.
const (
	NativeCalling ToolCalling = "native"
	TextCalling   ToolCalling = "text"
	// AutoCalling is native calling that also recognizes calls that the model writes as text.
	AutoCalling ToolCalling = "auto"
)

// StructuredOutput says how a model is asked for an answer that matches a schema.
type StructuredOutput string

// The ways to ask for structured output.
const (
	NativeOutput StructuredOutput = "native" // response_format
	PromptOutput StructuredOutput = "prompt" // the schema is in the system message
)

// Limits for a file of profiles.
const (
	maxProfileFile = 1 << 20 // bytes
	maxProfiles    = 1000
	maxModelID     = 256 // bytes
)

// ParseProfiles reads a JSON list of profiles, in the order of the file:
//
//	[
//	  {"id": "fast", "upstream": "gpt-5-mini", "context_tokens": 400000, "images": true,
//	   "price": {"input_per_million": 0.25, "output_per_million": 2}},
//	  {"id": "local", "tool_calling": "text", "context_tokens": 8192, "max_output_tokens": 1024}
//	]
//
// Only id is required. An error names its location by a JSON pointer (RFC 6901). Errors include unknown members, an id
// that occurs twice, and numbers below 0.
func ParseProfiles(data []byte) ([]Profile, error) {
	switch {
	case len(data) > maxProfileFile:
		return nil, fmt.Errorf("larger than %d bytes", maxProfileFile)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	var profiles []Profile
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	if err := json.UnmarshalDecode(dec, &profiles, json.RejectUnknownMembers(true), strictjson.RefuseNull); err != nil {
		return nil, profileError(err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more text after the list")
	}
	if len(profiles) == 0 || len(profiles) > maxProfiles {
		return nil, fmt.Errorf("%d models listed; the limit is 1 to %d", len(profiles), maxProfiles)
	}
	if err := checkProfiles(profiles); err != nil {
		return nil, err
	}
	return profiles, nil
}

// checkProfiles returns an error if a profile has an invalid field, if an id occurs twice, or if a fallback is not
// another model of the list.
func checkProfiles(profiles []Profile) error {
	indexes := make(map[string]int, len(profiles)) // by id
	for i := range profiles {
		pointer := fmt.Sprintf("/%d", i)
		if err := profiles[i].check(pointer); err != nil {
			return err
		}
		if first, twice := indexes[profiles[i].ID]; twice {
			return fmt.Errorf("%s/id: the same as /%d/id", pointer, first)
		}
		indexes[profiles[i].ID] = i
	}
	for i, p := range profiles {
		for n, id := range p.Fallback {
			if _, known := indexes[id]; !known || id == p.ID {
				return fmt.Errorf("/%d/fallback/%d: not another model of the list", i, n)
			}
		}
	}
	return nil
}

// typeProblems says what is wrong with JSON that does not fit a Go value of that kind.
var typeProblems = map[reflect.Kind]string{
	reflect.Slice: "not a list of models", reflect.String: "not a text", reflect.Bool: "not true or false",
	reflect.Int64: "not a whole number", reflect.Float64: "not a number",
}

// profileError converts an error of json/v2 to one line for the operator: the JSON pointer of the location, and what is
// wrong there. The default problem is text that ends too early, because its error is either a SyntacticError or a bare
// io.EOF.
func profileError(err error) error {
	pointer, problem := jsontext.Pointer(""), "the JSON ends too early"
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		pointer = syntactic.JSONPointer
		switch {
		case errors.Is(syntactic, jsontext.ErrDuplicateName):
			problem = "given twice"
		case !errors.Is(syntactic, io.ErrUnexpectedEOF):
			problem = syntactic.Err.Error()
		}
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		pointer, problem = semantic.JSONPointer, cmp.Or(typeProblems[semantic.GoType.Kind()], "not an object")
		if errors.Is(semantic, json.ErrUnknownName) {
			problem = "unknown field"
		}
	}
	if pointer == "" {
		return errors.New(problem)
	}
	oneLine := strings.NewReplacer("\n", " ", "\r", " ").Replace(string(pointer))
	return fmt.Errorf("%.200s: %s", oneLine, problem)
}

// check returns an error for the first field that is invalid or contradicts another one. The error begins with pointer,
// the profile's JSON pointer in MODELS_FILE, and the name of the field.
func (p *Profile) check(pointer string) error {
	price := cmp.Or(p.Price, &Price{})
	for _, rule := range []struct {
		field, problem string
		broken         bool
	}{
		{"/id", "missing", p.ID == ""},
		{"/id", "not a name", isInvalidID(p.ID)},
		{"/upstream", "not a name", isInvalidID(p.Upstream)},
		{"/tool_calling", "not auto, native or text", !slices.Contains([]ToolCalling{"", AutoCalling, NativeCalling, TextCalling}, p.ToolCalling)},
		{"/structured_output", "not native or prompt", !slices.Contains([]StructuredOutput{"", NativeOutput, PromptOutput}, p.StructuredOutput)},
		{"/api_key_file", "given beside api_key", p.APIKey != "" && p.APIKeyFile != ""},
		{"/context_tokens", "below 0", p.ContextTokens < 0},
		{"/max_output_tokens", "below 0", p.MaxOutputTokens < 0},
		{"/max_output_tokens", "not below context_tokens", p.ContextTokens > 0 && p.MaxOutputTokens >= p.ContextTokens},
		{"/price/input_per_million", "below 0", price.Input < 0},
		{"/price/output_per_million", "below 0", price.Output < 0},
	} {
		if rule.broken {
			return fmt.Errorf("%s%s: %s", pointer, rule.field, rule.problem)
		}
	}
	return nil
}

// isInvalidID reports whether an id is too long or has control characters, which would corrupt a line of the log. An
// empty id is not invalid.
func isInvalidID(id string) bool {
	return len(id) > maxModelID || strings.ContainsFunc(id, unicode.IsControl)
}
