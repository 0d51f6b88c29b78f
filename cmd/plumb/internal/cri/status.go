package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// statusTimeout limits the time in which a runtime must say what it is. Because every command asks first, a runtime that hangs
// must not delay it for longer.
const statusTimeout = time.Second

// An Answer is what a runtime says about itself.
type Answer struct {
	Socket        string
	Name, Version string            // empty if there is no CRI service at the socket, as with Docker's containerd
	NotReady      string            // why the network is not ready; empty if it is
	Info          map[string]string // the verbose status, whose keys depend on the runtime
	Err           error             // why there is no answer
}

// DefaultSockets returns the default sockets of containerd, CRI-O and k3s.
func DefaultSockets() []string { return slices.Clone(defaultSockets) }

// Existing returns the sockets that exist.
func Existing(sockets []string) []string {
	return slices.DeleteFunc(slices.Clone(sockets), func(socket string) bool {
		_, err := os.Stat(socket)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// AskAll asks the runtimes at all sockets at the same time, and returns one answer for each socket within a second.
func AskAll(ctx context.Context, sockets []string) []Answer {
	answers := make([]Answer, len(sockets))
	var all sync.WaitGroup
	for i, socket := range sockets {
		all.Go(func() { answers[i] = ask(ctx, socket) })
	}
	all.Wait()
	return answers
}

func ask(ctx context.Context, socket string) Answer {
	a := Answer{Socket: strings.TrimPrefix(socket, "unix://")}
	if err := unix.Access(a.Socket, unix.W_OK); err != nil {
		a.Err = fmt.Errorf("%s: %w", a.Socket, err)
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := withClient(ctx, a.Socket, func(c runtimeapi.RuntimeServiceClient) error { return a.fill(ctx, c) })
	switch status.Code(err) {
	case codes.Unimplemented:
		return Answer{Socket: a.Socket}
	case codes.DeadlineExceeded:
		err = fmt.Errorf("%s does not answer within %v", a.Socket, statusTimeout)
	case codes.OK:
	default:
		err = fmt.Errorf("%s: %w", a.Socket, inWords(err, statusTimeout, "start the runtime"))
	}
	a.Err = err
	return a
}

// fill asks for the version and the verbose status.
func (a *Answer) fill(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
	version, err := c.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("version: %w", err)
	}
	answer, err := c.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	a.Name, a.Version, a.Info = version.GetRuntimeName(), version.GetRuntimeVersion(), answer.GetInfo()
	for _, condition := range answer.GetStatus().GetConditions() {
		if condition.GetType() == runtimeapi.NetworkReady && !condition.GetStatus() {
			a.NotReady = strings.TrimPrefix(condition.GetMessage(), "Network plugin returns error: ")
		}
	}
	return nil
}
