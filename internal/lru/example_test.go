package lru_test

import (
	"fmt"
	"time"

	"answerd/internal/lru"
)

func ExampleCache() {
	sessions := lru.New[string](2, time.Minute, func(session string) { fmt.Println("discarded", session) })
	for _, user := range []string{"ann", "bob", "cyd"} {
		session, err := sessions.Acquire(user, func() string { return "session of " + user })
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("used", session)
		sessions.Release(user)
	}
	fmt.Println(sessions.Len(), "sessions")
	sessions.Close() // waits until all are discarded
	// Unordered output:
	// used session of ann
	// used session of bob
	// used session of cyd
	// 2 sessions
	// discarded session of ann
	// discarded session of bob
	// discarded session of cyd
}
