package main

import (
	"context"
	"log/slog"
	"os"

	"answerd/internal/auth"
)

// newRules reads AUTH_RULES_FILE; nil where there is none. end is to be called in the end:
// until then the file is read again when it changes, and one that is no good is refused.
func newRules(ctx context.Context, c config, logger *slog.Logger) (rules *auth.Rules, end func(), err error) {
	if c.AuthRulesFile == "" {
		return nil, func() {}, nil
	}
	file := newFileWatch(c.AuthRulesFile) // before it is read
	first, err := readRules(c)
	if err != nil {
		return nil, nil, err
	}
	rules = auth.NewRules(first)
	return rules, startFollowing(ctx, file, "access rules", logger, func() (slog.Attr, error) {
		again, err := readRules(c)
		if err != nil {
			return slog.Attr{}, err
		}
		rules.Replace(again)
		return slog.Int("rules", len(again)), nil
	}), nil
}

func readRules(c config) ([]auth.Rule, error) {
	if c.AuthRulesFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.AuthRulesFile)
	if err != nil {
		return nil, &configError{"AUTH_RULES_FILE", "cannot be read: " + fileReason(err)}
	}
	rules, err := auth.ParseRules(data)
	if err != nil {
		return nil, &configError{"AUTH_RULES_FILE", err.Error()}
	}
	return rules, nil
}
