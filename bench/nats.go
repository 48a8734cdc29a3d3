package main

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// serveNATS runs the role nats: a NATS server with JetStream. Its argument is the directory in which it stores streams.
func serveNATS(args []string) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: args[0]})
	if err != nil {
		return fmt.Errorf("make a NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(childTimeout) {
		return errors.New("the NATS server does not start")
	}
	fmt.Println(s.Addr())
	s.WaitForShutdown()
	return nil
}
