package llm

import (
	"bytes"
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
)

// Profile describes one model that is served, as the operator wrote it in MODELS_FILE. Only ID is required.
type Profile struct {
	ID          string      `json:"id"`           // the name of the model in requests
	Upstream    string      `json:"upstream"`     // the endpoint's own id of the model; "" means ID
	ToolCalling ToolCalling `json:"tool_calling"` // "" means the setting LLM_TOOL_CALLING
	// ContextTokens is the size of the model's context window, for prompt and answer together; 0 means that it is
	// unknown, and then conversations are not shortened before a request.
	ContextTokens   int64  `json:"context_tokens"`
	MaxOutputTokens int64  `json:"max_output_tokens"` // asked for in every request; 0 leaves it to the endpoint
	Images          bool   `json:"images"`            // it takes images
	Audio           bool   `json:"audio"`             // it takes audio
	PDF             bool   `json:"pdf"`               // it takes PDF documents
	Price           *Price `json:"price"`             // nil is unknown
	// StructuredOutput is how the model is asked for JSON of a schema; "" is native.
	StructuredOutput StructuredOutput `json:"structured_output"`

	// An endpoint of its own, with its own key; "" is the setting's, with the setting's key.
	BaseURL    string            `json:"base_url"`     // up to and including /v1; its query is kept
	APIKey     string            `json:"api_key"`      // sent as a bearer token; "" sends none
	APIKeyFile string            `json:"api_key_file"` // in place of it
	Headers    map[string]string `json:"headers"`      // sent with every request
	Query      map[string]string `json:"query"`        // query parameters of every request
	TLS        TLSFiles          `json:"tls"`
	// Fallback lists models of the file to ask, in order, when this one cannot be reached, is
	// rate limited or fails with 5xx before the first part of its answer.
	Fallback []string `json:"fallback"`
}

// TLSFiles names PEM files for the connections to a model's endpoint; "" is none.
type TLSFiles struct {
	CAFile   string `json:"ca_file"`   // roots in place of the system's
	CertFile string `json:"cert_file"` // client certificate
	KeyFile  string `json:"key_file"`  // its key
}

// Price is what tokens of a model cost, in the operator's currency.
type Price struct {
	Input  float64 `json:"input_per_million"`
	Output float64 `json:"output_per_million"`
}

// CostOf returns what tokens cost, rounded to 1e-12; nil if p is nil.
func (p *Price) CostOf(input, output int64) *float64 {
	if p == nil {
		return nil
	}
	// Prices are per million tokens. Rounding hides that binary fractions are not exact.
	cost := math.Round(float64(input)*p.Input*1e6+float64(output)*p.Output*1e6) / 1e12
	return &cost
}

// ToolCalling is how a model calls tools.
type ToolCalling string

// The ways of tool calling.
const (
	NativeCalling ToolCalling = "native"
	TextCalling   ToolCalling = "text"
	// AutoCalling is native, and reads calls that the model writes as text nevertheless.
	AutoCalling ToolCalling = "auto"
)

// StructuredOutput is how a model is asked for an answer of a given schema.
type StructuredOutput string

// The ways of asking for it.
const (
	NativeOutput StructuredOutput = "native" // response_format
	PromptOutput StructuredOutput = "prompt" // the schema is in the system message
)

// Bounds of a file of profiles.
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
// Only id is required. An error names the place by a JSON pointer (RFC 6901), such as that of an unknown member, of an
// id that occurs twice, or of a number below 0.
func ParseProfiles(data []byte) ([]Profile, error) {
	switch {
	case len(data) > maxProfileFile:
		return nil, fmt.Errorf("larger than %d bytes", maxProfileFile)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	var profiles []Profile
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	if err := json.UnmarshalDecode(dec, &profiles, json.RejectUnknownMembers(true), refuseNull); err != nil {
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

// checkProfiles returns an error for a profile with an invalid field, for an id that occurs twice, and for a fallback
// that is not another model of the list.
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

// refuseNull makes null an error. Without it, json/v2 decodes null as the zero value of any type.
var refuseNull = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() == 'n' { // null
		return &json.SemanticError{GoType: reflect.TypeOf(v).Elem(), JSONKind: 'n'}
	}
	return errors.ErrUnsupported // json/v2 then decodes the value as usual
}))

// profileError converts an error of json/v2 to one line for the operator: the JSON pointer of the place, and what is
// wrong there. Text that ends too early is either a SyntacticError or a bare io.EOF, so it is the default.
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
		pointer, problem = semantic.JSONPointer, "not an object"
		kind := semantic.GoType.Kind() // of the Go value that the JSON does not fit
		switch {
		case errors.Is(semantic, json.ErrUnknownName):
			problem = "unknown field"
		case kind == reflect.Slice:
			problem = "not a list of models"
		case kind == reflect.String:
			problem = "not a text"
		case kind == reflect.Bool:
			problem = "not true or false"
		case kind == reflect.Int64:
			problem = "not a whole number"
		case kind == reflect.Float64:
			problem = "not a number"
		}
	}
	if pointer == "" {
		return errors.New(problem)
	}
	oneLine := strings.NewReplacer("\n", " ", "\r", " ").Replace(string(pointer))
	return fmt.Errorf("%.200s: %s", oneLine, problem)
}

// check returns an error for the first field whose value is invalid or contradicts another one. pointer is the JSON
// pointer of the profile in MODELS_FILE, for the error.
func (p *Profile) check(pointer string) error {
	price := Price{}
	if p.Price != nil {
		price = *p.Price
	}
	for _, rule := range []struct {
		field, problem string
		broken         bool
	}{
		{"/id", "missing", p.ID == ""},
		{"/id", "not a name", badID(p.ID)},
		{"/upstream", "not a name", badID(p.Upstream)},
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

// badID reports whether an id is too long, or has control characters, which would corrupt a line of the log.
func badID(id string) bool {
	return len(id) > maxModelID || strings.ContainsFunc(id, unicode.IsControl)
}
