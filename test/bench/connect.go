package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	withNFTables = "reference, nftables"

	toHostPort   = "to a host port"
	masqueraded  = "masqueraded"
	toHost       = "to the host itself"
	perContainer = 100 // host ports of each other container
)

// connections returns scenarios that measure what the rules of a host cost a new TCP connection. A sample is the time of
// one connect(2), which ends when the SYN and its answer have passed the host.
func connections() (all []scenario) {
	for _, n := range []int{0, 5000} {
		var goal aim
		if n > 0 {
			goal.Median = 0.8
		}
		all = append(all, scenario{
			name: fmt.Sprintf("connect/%d", n), long: n > 0,
			verbs: []verb{{name: toHostPort, aim: goal}, {name: masqueraded}, {name: toHost, aim: goal}},
			roles: []role{
				{name: plumb, fill: n, backend: "nftables"},
				{name: reference, reference: true, fill: n, backend: "iptables"},
				{name: withNFTables, reference: true, fill: n, backend: "nftables"},
			},
			chain: func(s *side, _ int) []conf { return []conf{bridge(s, v4).masq(s), portmap(0, 1).withBackend(s)} },
			prepare: func(s *side) {
				veth(s)
				mapForeign(s, perContainer)
				_, err := s.containers[0].Exec("ip", "link", "delete", ifName)
				s.must(err)
			},
			connect: true,
		})
	}
	return all
}

// withBackend selects the backend of the side's role in c, and returns c.
func (c conf) withBackend(s *side) conf {
	if s.backend != "" {
		c["backend"] = s.backend
	}
	return c
}

// A path is a client that connects to a server.
type path struct {
	client *nstest.NS
	server netip.AddrPort
}

// connections attaches one container for each side, and then lets the clients of all sides connect in turns. A turn consists
// of 50 connections, one after the other.
func (r *runner) connections() error {
	paths := map[*side]map[string]path{}
	for _, s := range r.sides {
		a := r.attach(s, 0, "container")
		if _, err := a.do("ADD", execute); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		paths[s] = s.paths()
	}
	for i := range r.iterations + warmups {
		for _, k := range order(len(r.sides), i) {
			s := r.sides[k]
			for _, v := range r.verbs {
				took, err := paths[s][v.name].connect(50)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", s.name, v.name, err)
				}
				if key := v.name + "/" + s.name; i >= warmups {
					r.samples[key] = append(r.samples[key], took...)
				}
			}
		}
	}
	return nil
}

// paths connects the side's host to another host, and starts the servers.
func (s *side) paths() map[string]path {
	const hostAddr, outsideAddr, hostService = "198.18.0.1", "198.18.0.2", 10080
	outside, container := nstest.NewHost(s.bed), s.containers[0]
	nstest.Join(s.bed, nstest.End{In: s.host, Name: "uplink0", Addrs: []string{hostAddr + "/24"}},
		nstest.End{In: outside, Name: "uplink0", Addrs: []string{outsideAddr + "/24"}})
	s.drain(container, 80)
	s.drain(outside, 80)
	s.drain(s.host, hostService)
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	return map[string]path{
		toHostPort:  {outside, at(hostAddr, firstPort)},
		masqueraded: {container, at(outsideAddr, 80)},
		toHost:      {outside, at(hostAddr, hostService)},
	}
}

// drain starts a server that reads from each connection to its end.
func (s *side) drain(n *nstest.NS, port int) {
	var l net.Listener
	s.must(n.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	}))
	s.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
}

// connect connects n times, and resets each connection. It uses the system call, because a Go client would also measure the
// scheduler of the Go runtime.
func (p path) connect(n int) (all []sample, err error) {
	to := &unix.SockaddrInet4{Port: int(p.server.Port()), Addr: p.server.Addr().As4()}
	err = p.client.Do(func() error {
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			begin := time.Now()
			err = unix.Connect(fd, to)
			all = append(all, sample{wall: time.Since(begin)})
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
			if err != nil {
				return os.NewSyscallError("connect", err)
			}
		}
		return nil
	})
	return all, err
}
