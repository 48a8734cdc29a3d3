package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent/admission"
)

// maxRate bounds the number in a rate.
const maxRate = 1_000_000

// rateLimit is a number in a period, written 10/s, 60/m or 1000/h.
type rateLimit admission.Rate

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *rateLimit) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || per == 0 || n < 1 || n > maxRate {
		return errors.New("not a rate")
	}
	*r = rateLimit{N: int(n), Per: per}
	return nil
}
