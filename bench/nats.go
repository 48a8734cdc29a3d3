package main

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// serveNATS runs this process as a NATS server with JetStream, which stores in the directory args[0].
func serveNATS(args []string) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: args[0]})
	if err != nil {
		return fmt.Errorf("make a NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTime) {
		return errors.New("the NATS server does not start")
	}
	fmt.Println(s.Addr())
	s.WaitForShutdown()
	return nil
}
