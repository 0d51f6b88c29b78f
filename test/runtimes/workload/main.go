// Command workload is the program in the containers of this suite.
//
//	workload                  waits for a signal
//	workload serve ADDR…      waits for a signal, and answers each TCP connection with "peer=IP local=IP", as nstest.ServeTCP does
//	workload dial ADDR        connects to such a server and prints its answer
//	workload read FILE        prints the file
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const timeout = 10 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "dial" {
		return dial(args[1])
	}
	if len(args) == 2 && args[0] == "read" {
		text, err := os.ReadFile(args[1])
		fmt.Print(string(text))
		return err
	}
	if len(args) > 0 && args[0] == "serve" {
		for _, addr := range args[1:] {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			go serve(l)
		}
	}
	wait()
	return nil
}

// wait returns after SIGINT or SIGTERM. Because the program is the first process of its PID namespace, wait also reaps
// ended processes.
func wait() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "peer=%s local=%s", host(c.RemoteAddr()), host(c.LocalAddr()))
		_ = c.Close()
	}
}

func host(a net.Addr) string { return a.(*net.TCPAddr).AddrPort().Addr().Unmap().String() }

func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}
