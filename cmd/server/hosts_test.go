package main

import (
	"errors"
	"fmt"
	"testing"
)

func TestNormalizeHostsMatchesRequests(t *testing.T) {
	settings := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1"}
	c, err := loadConfig(envOf(append(settings,
		"ALLOWED_HOSTS", "App.Example, [::1],agent.corp.", "CORS_ORIGINS", "https://App.Example:443, http://localhost:3000")...))
	if got := fmt.Sprint(c.AllowedHosts, c.CORSOrigins); err != nil || got != "[app.example ::1 agent.corp] [https://app.example http://localhost:3000]" {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range [][2]string{
		{"ALLOWED_HOSTS", "app.example:443"}, {"ALLOWED_HOSTS", "https://app.example"}, {"ALLOWED_HOSTS", "*"}, {"ALLOWED_HOSTS", "*.example"}, {"ALLOWED_HOSTS", "a,,b"},
		{"CORS_ORIGINS", "*"}, {"CORS_ORIGINS", "null"}, {"CORS_ORIGINS", "https://app.example/"}, {"CORS_ORIGINS", "app.example"}, {"CORS_ORIGINS", "https://u@app.example"},
	} {
		_, err := loadConfig(envOf(append(settings, bad[0], bad[1])...))
		if e, ok := errors.AsType[*configError](err); !ok || e.name != bad[0] {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
