package main

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// These are set, in the environment, for a process that is to be a NATS server.
const (
	natsDir  = "TEST_AS_NATS_IN"
	natsPort = "TEST_AS_NATS_AT"
)

// serveNATS is a NATS server with JetStream, until it is killed. It says where it listens.
func serveNATS(dir, port string) {
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir}
	if n, err := strconv.Atoi(port); err == nil {
		o.Port = n
	}
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		os.Exit(1)
	}
	fmt.Println(s.ClientURL())
	s.WaitForShutdown()
}

// natsServer is a NATS server as a process of its own, always on the same directory and port.
type natsServer struct {
	dir, url string
	process  *process
}

func spawnNATS(t testing.TB) *natsServer {
	n := &natsServer{dir: t.TempDir()}
	n.start(t)
	return n
}

func (n *natsServer) start(t testing.TB) {
	t.Helper()
	port := ""
	if n.url != "" {
		port = n.url[len("nats://127.0.0.1:"):]
	}
	n.process = spawnAnswerd(t, []string{natsDir + "=" + n.dir, natsPort + "=" + port})
	n.url = n.process.waitForLine(t, "nats://")
}

// kill is kill -9.
func (n *natsServer) kill() {
	_ = n.process.cmd.Process.Kill()
	_ = n.process.cmd.Wait() // killed
}
