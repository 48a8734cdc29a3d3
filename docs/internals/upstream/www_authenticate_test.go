//go:build upstream

package upstream

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

func TestParseWWWAuthenticateReadsEveryForm(t *testing.T) {
	for _, header := range []string{
		`Bearer realm="", resource_metadata="https://a.example/m"`,
		`Bearer realm="a", resource_metadata = "https://a.example/m"`,
		`Negotiate oYG2MIG0, Bearer resource_metadata="https://a.example/m"`,
	} {
		challenges, err := oauthex.ParseWWWAuthenticate([]string{header})
		if err != nil {
			t.Errorf("ParseWWWAuthenticate(%s) = error %v, want its challenges", header, err)
			continue
		}
		last := challenges[len(challenges)-1]
		if got, want := last.Params["resource_metadata"], "https://a.example/m"; got != want {
			t.Errorf("ParseWWWAuthenticate(%s): got the metadata %q, want %q", header, got, want)
		}
	}
}
