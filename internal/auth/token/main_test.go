package token

import (
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient returns a ClientCredentials that uses i, and its log.
func newClient(t testing.TB, i *authtest.IAM, change func(*ClientCredentialsConfig)) (*ClientCredentials, *authtest.LogBuffer) {
	t.Helper()
	logged := &authtest.LogBuffer{}
	cfg := ClientCredentialsConfig{TokenURL: i.URL + "/token", ClientID: "me", Secret: FixedSecret(auth.NewSecret(authtest.SecretCanary)),
		Scope: "a b", Logger: logged.Logger()}
	if change != nil {
		change(&cfg)
	}
	c, err := NewClientCredentials(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, logged
}

// newExchange returns an Exchange that uses i, and its log.
func newExchange(t testing.TB, i *authtest.IAM, change func(*ExchangeConfig)) (*Exchange, *authtest.LogBuffer) {
	t.Helper()
	logged := &authtest.LogBuffer{}
	cfg := ExchangeConfig{ClientCredentialsConfig: ClientCredentialsConfig{TokenURL: i.URL + "/token", ClientID: "me",
		Secret: FixedSecret(auth.NewSecret(authtest.SecretCanary)), Logger: logged.Logger()}}
	if change != nil {
		change(&cfg)
	}
	e, err := NewExchange(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, logged
}

// ann and bob are callers with the token that they sent.
var (
	ann = auth.Identity{Issuer: "https://iam.example", Subject: "ann", Token: auth.NewSecret("sent-by-ann-" + authtest.TokenCanary)}
	bob = auth.Identity{Issuer: "https://iam.example", Subject: "bob", Token: auth.NewSecret("sent-by-bob-" + authtest.TokenCanary)}
)
