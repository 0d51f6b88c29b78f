// Tenant is what runs in the containers of this suite: it waits to be ended, serves
// TCP meanwhile, or dials.
//
//	tenant                  waits
//	tenant serve ADDR…      answers each connection with "peer=IP local=IP", as nstest.ServeTCP does
//	tenant dial ADDR        prints the answer of such a server
//	tenant read FILE        prints the file
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

const patience = 10 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tenant:", err)
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

// wait returns when it is told to end. It is the first process of its PID namespace
// and so buries the dead.
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
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}
