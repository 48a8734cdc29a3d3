package eventtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// clusterSize is the number of servers in a Cluster.
const clusterSize = 3

// clusterWait bounds every wait for a cluster. It is generous, for a busy machine.
const clusterWait = 2 * time.Minute

// Cluster is a cluster of three NATS servers with JetStream. Each route between two servers goes through a proxy, so
// that servers can be partitioned from each other while clients still reach them.
type Cluster struct {
	URLs    []string // URLs of the servers, for clients
	options [clusterSize]*server.Options
	servers [clusterSize]*server.Server
	routes  [clusterSize][clusterSize]*Proxy // by the two servers: from the first one to the second one
}

// StartCluster starts a cluster and waits until JetStream is ready. The cluster is stopped when the test ends.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	cluster := &Cluster{}

	var listeners [clusterSize]string // for routes
	for i := range listeners {
		listeners[i] = FreeAddress(t)
	}

	for from := range cluster.options {
		client := FreeAddress(t)
		cluster.URLs = append(cluster.URLs, "nats://"+client)
		options := &server.Options{
			ServerName: fmt.Sprintf("n%d", from), NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
			// A server announces its address to the other servers. Nothing listens on this address, so that the servers
			// use only the configured routes, which go through the proxies.
			Cluster: server.ClusterOpts{Name: "c", Advertise: FreeAddress(t), ConnectRetries: 1},
		}
		options.Host, options.Port = splitAddress(t, client)
		options.Cluster.Host, options.Cluster.Port = splitAddress(t, listeners[from])
		for to := range cluster.options {
			if to != from {
				p := StartProxy(t, "nats://"+listeners[to])
				cluster.routes[from][to] = p
				options.Routes = append(options.Routes, &url.URL{Scheme: "nats", Host: strings.TrimPrefix(p.URL(), "nats://")})
			}
		}
		cluster.options[from] = options
	}

	for i := range cluster.servers {
		cluster.StartServer(t, i)
		t.Cleanup(func() { cluster.StopServer(i) })
	}

	Await(t, "the cluster to have a leader that knows all servers", func() bool {
		for _, s := range cluster.servers {
			if len(s.JetStreamClusterPeers()) == clusterSize {
				return true
			}
		}
		return false
	})
	return cluster
}

// URL returns the URLs of all servers, in the form of EVENTS_URL.
func (c *Cluster) URL() string { return strings.Join(c.URLs, ",") }

// StartServer starts server number i with its previous files.
func (c *Cluster) StartServer(t testing.TB, i int) {
	t.Helper()
	s, err := server.NewServer(c.options[i].Clone())
	noError(t, err)
	s.Start()
	c.servers[i] = s
}

// StopServer shuts server number i down and waits until it has ended.
func (c *Cluster) StopServer(i int) {
	c.servers[i].Shutdown()
	c.servers[i].WaitForShutdown()
}

// Leader returns the number of the server that leads the stream of runs.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	return c.LeaderOf(t, "ANSWERD_RUNS")
}

// LeaderOf returns the number of the server that leads the given stream.
func (c *Cluster) LeaderOf(t testing.TB, stream string) (leader int) {
	t.Helper()
	Await(t, "the stream "+stream+" to have a leader", func() bool {
		for i, s := range c.servers {
			if s.JetStreamIsStreamLeader("$G", stream) {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// Clients returns the number of clients that are connected to server number i.
func (c *Cluster) Clients(i int) int { return c.servers[i].NumClients() }

// Isolate partitions server number i from both other servers. Its routes forward nothing until Heal. If cut is true,
// their connections are closed as well.
func (c *Cluster) Isolate(i int, cut bool) {
	for j := range c.routes {
		if j == i {
			continue
		}
		for _, p := range []*Proxy{c.routes[i][j], c.routes[j][i]} {
			p.Stop()
			if cut {
				p.Cut()
			}
		}
	}
}

// Heal ends all partitions.
func (c *Cluster) Heal() {
	for _, routes := range c.routes {
		for _, p := range routes {
			if p != nil {
				p.Resume()
			}
		}
	}
}

// AwaitReplicas waits until all servers have all messages of the streams.
func (c *Cluster) AwaitReplicas(t testing.TB) {
	t.Helper()
	nc, err := nats.Connect(c.URL())
	noError(t, err)
	defer nc.Close()
	j, err := js.New(nc)
	noError(t, err)
	Await(t, "the streams to have three current replicas", func() bool {
		for _, name := range []string{"ANSWERD_RUNS", "ANSWERD_INDEX", "ANSWERD_JOBS"} {
			s, err := j.Stream(t.Context(), name)
			if err != nil || s.CachedInfo().Cluster == nil || len(s.CachedInfo().Cluster.Replicas) != clusterSize-1 {
				return false
			}
			for _, r := range s.CachedInfo().Cluster.Replicas {
				if !r.Current || r.Offline {
					return false
				}
			}
		}
		return true
	})
}

// Await waits until holds returns true. It fails the test after clusterWait. what describes the condition.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(clusterWait); !holds(); {
		if time.Now().After(late) {
			t.Fatalf("waited %s, want %s", clusterWait, what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func splitAddress(t testing.TB, address string) (host string, port int) {
	t.Helper()
	host, text, _ := strings.Cut(address, ":")
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	return host, port
}

var freeAddresses atomic.Int64

// FreeAddress returns an address on which no process listens. On Linux, each call uses a different loopback host,
// because the system may give a free port of one host to other processes.
func FreeAddress(t testing.TB) string {
	t.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		pid := os.Getpid()
		host = fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, 1+pid%250, 1+freeAddresses.Add(1)%250)
	}
	l, err := net.Listen("tcp", host+":0")
	noError(t, err)
	defer l.Close()
	return l.Addr().String()
}
