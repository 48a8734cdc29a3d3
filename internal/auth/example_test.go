package auth_test

import (
	"errors"
	"fmt"
	"net/http"

	"answerd/internal/auth"
)

func ExampleRules() {
	rules, err := auth.ParseRules([]byte(`{"rules": [
		{"name": "everybody", "servers": ["search"]},
		{"name": "admins", "scopes": ["admin"], "servers": ["crm"], "tools": ["crm_*"]}
	]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := auth.NewRules(rules)
	ann := auth.Identity{Subject: "ann", Scopes: []string{"admin"}}
	bob := auth.Identity{Subject: "bob"}
	for _, caller := range []auth.Identity{ann, bob} {
		rule, ok := r.Of(caller).AllowsTool("crm", "crm_delete")
		fmt.Printf("%s: %t %q\n", caller.Subject, ok, rule)
	}
	// Output:
	// ann: true "admins"
	// bob: false ""
}

func ExampleFromRequest() {
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer eyJhbGciOiJFUzI1NiJ9.e30.c2ln"}}}
	token, err := auth.FromRequest(r)
	fmt.Println(token, err)

	r.Header.Del("Authorization")
	_, err = auth.FromRequest(r)
	status, challenge := auth.Challenge(err, "https://answerd.example/.well-known/oauth-protected-resource")
	fmt.Println(errors.Is(err, auth.ErrNoToken), status, challenge)
	// Output:
	// eyJhbGciOiJFUzI1NiJ9.e30.c2ln <nil>
	// true 401 Bearer realm="answerd", resource_metadata="https://answerd.example/.well-known/oauth-protected-resource"
}
