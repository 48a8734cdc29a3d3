package auth

import "answerd/internal/auth/fetch"

// Metadata is the protected resource metadata of RFC 9728 section 2. It says where a client that got a 401 can get a
// token.
type Metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers,omitempty"`
	Scopes               []string `json:"scopes_supported,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	Name                 string   `json:"resource_name"`
}

// Metadata returns the metadata for resource, which is a URL of this service. It leaves out the issuer if
// fetch.CheckEndpoint rejects it, because it is not a URL or because no secret may be sent to it.
func (v *Verifier) Metadata(resource string) Metadata {
	m := Metadata{Resource: resource, Scopes: v.scopes, BearerMethods: []string{"header"}, Name: "answerd"}
	if fetch.CheckEndpoint("", v.cfg.Issuer) == nil {
		m.AuthorizationServers = []string{v.cfg.Issuer}
	}
	return m
}
