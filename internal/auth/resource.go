package auth

// Metadata is what RFC 9728 section 2 calls protected resource metadata: by it a client
// that has been answered 401 finds out where to get a token.
type Metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers,omitempty"`
	Scopes               []string `json:"scopes_supported,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	Name                 string   `json:"resource_name"`
}

// Metadata describes resource, which is an address of ours, to those whose tokens are
// verified here. An issuer that is no address, which a client could not ask, is left out.
func (v *Verifier) Metadata(resource string) Metadata {
	m := Metadata{Resource: resource, Scopes: v.scopes, BearerMethods: []string{"header"}, Name: "answerd"}
	if CheckEndpoint("", v.cfg.Issuer) == nil {
		m.AuthorizationServers = []string{v.cfg.Issuer}
	}
	return m
}
