// Package cri asks container runtimes for their pod sandboxes, with version 1 of the Container Runtime Interface (CRI).
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	timeout = 10 * time.Second // for one runtime
	maxSize = 16 << 20         // of an answer in bytes, as in crictl; gRPC's default is 4 MiB
)

// defaultSockets contains the default sockets of containerd, CRI-O and k3s.
var defaultSockets = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"}

// ErrNoRuntime means that no default socket of a runtime exists, or that no runtime there supports CRI v1.
var ErrNoRuntime = errors.New("no runtime with CRI v1 found at " + strings.Join(defaultSockets, ", "))

// errNoCRI means that the program at a socket does not support CRI v1.
var errNoCRI = errors.New("the program there has no CRI v1; name the socket of the runtime with --cri=SOCKET")

// FindSandboxes returns the IDs of the pod sandboxes of the runtimes at the sockets. Without a socket, it asks the runtimes
// whose default sockets exist. It skips a runtime that does not support CRI v1, such as Docker's containerd. It returns the
// errors of Sandboxes, and ErrNoRuntime.
func FindSandboxes(ctx context.Context, sockets []string) (ids []string, err error) {
	if len(sockets) == 0 {
		sockets = Existing(defaultSockets)
	}
	err = ErrNoRuntime
	for _, socket := range sockets {
		found, failed := Sandboxes(ctx, socket)
		switch {
		case errors.Is(failed, errNoCRI):
			continue
		case failed != nil:
			return nil, failed
		}
		ids, err = append(ids, found...), nil
	}
	return ids, err
}

// Sandboxes returns the IDs of the pod sandboxes in any state of the runtime at a socket, which is a path with or without
// the prefix "unix://". It fails if the runtime does not answer within 10 seconds.
func Sandboxes(ctx context.Context, socket string) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = withClient(ctx, socket, func(c runtimeapi.RuntimeServiceClient) error {
		answer, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return fmt.Errorf("list pod sandboxes: %w", err)
		}
		for _, sandbox := range answer.GetItems() {
			ids = append(ids, sandbox.GetId())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("runtime %s: %w", socket, inWords(err, timeout, "start the runtime, or name its socket with --cri=SOCKET"))
	}
	return ids, nil
}

// inWords returns the error of withClient without the words of gRPC, and what to do, which is advice if no program answers. limit is
// the time that the runtime had.
func inWords(err error, limit time.Duration, advice string) error {
	var failed interface{ GRPCStatus() *status.Status }
	switch {
	case errors.Is(err, unix.ENOENT):
		return errors.New("there is no such socket; " + advice)
	case errors.Is(err, unix.ECONNREFUSED):
		return errors.New("no program answers at this socket (connection refused); " + advice)
	case !errors.As(err, &failed):
		return err
	case failed.GRPCStatus().Code() == codes.Unimplemented:
		return errNoCRI
	case failed.GRPCStatus().Code() == codes.DeadlineExceeded:
		return fmt.Errorf("it does not answer within %v; restart the runtime, and try again", limit)
	}
	return fmt.Errorf("it answers %q (%v); look for the reason in its log", failed.GRPCStatus().Message(), failed.GRPCStatus().Code())
}

// withClient calls f with a client for the socket, and then closes the connection. It first connects without gRPC, whose error has no
// cause.
func withClient(ctx context.Context, socket string, f func(runtimeapi.RuntimeServiceClient) error) error {
	path := strings.TrimPrefix(socket, "unix://")
	probe, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	_ = probe.Close()
	conn, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSize)))
	if err != nil {
		return err
	}
	if err = f(runtimeapi.NewRuntimeServiceClient(conn)); err != nil {
		_ = conn.Close()
		return err
	}
	return conn.Close()
}
