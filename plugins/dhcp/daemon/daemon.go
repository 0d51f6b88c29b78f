package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
	"golang.org/x/sys/unix"
)

// options are the daemon's flags. All durations must be positive.
type options struct {
	pidFile    string
	hostPrefix string
	socket     string
	broadcast  bool
	timeout    time.Duration
	resendMax  time.Duration
	addTimeout time.Duration
}

// parseOptions parses the arguments of the daemon. For -h it prints the flags to stderr and
// returns flag.ErrHelp.
func parseOptions(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("dhcp daemon", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.pidFile, "pidfile", "", "write the process ID to this `file`, an absolute path")
	f.StringVar(&o.hostPrefix, "hostprefix", "", "`directory` where the host's file system is mounted; the daemon prepends it to the path of the socket and of each namespace")
	f.StringVar(&o.socket, "socketpath", "", "`path` of the socket (default "+DefaultSocket+")")
	f.BoolVar(&o.broadcast, "broadcast", false, "ask servers to broadcast their answers, for all interfaces; the daemon always does so for ipvlan")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "limit of an exchange with a server that no ADD waits for")
	f.DurationVar(&o.resendMax, "resendmax", 62*time.Second, "longest time between two retransmissions of a message")
	f.DurationVar(&o.addTimeout, "resendtimeout", time.Minute, "limit of an ADD, unless its configuration sets \"timeout\"")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(f.NArg() > 0, "unexpected argument %q", f.Arg(0))
	reportIf(o.pidFile != "" && !filepath.IsAbs(o.pidFile), "-pidfile %q is not an absolute path", o.pidFile)
	reportIf(o.socket != "" && !filepath.IsAbs(o.socket), "-socketpath %q is not an absolute path", o.socket)
	reportIf(o.hostPrefix != "" && !filepath.IsAbs(o.hostPrefix), "-hostprefix %q is not an absolute path", o.hostPrefix)
	reportIf(o.timeout <= 0 || o.resendMax <= 0 || o.addTimeout <= 0, "-timeout, -resendmax and -resendtimeout must be positive")
	return o, errors.Join(errs...)
}

// Command runs the daemon until SIGTERM or SIGINT. It implements the plugin's command "daemon".
func Command(r *skel.Request, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return Run(ctx, args, r.Environ(), r.Stderr())
}

// Run runs the daemon with these arguments until ctx is done, and writes one line per event to log.
func Run(ctx context.Context, args, environ []string, log io.Writer) error {
	o, err := parseOptions(args, log)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := inheritedSocket(environ)
	if err != nil {
		return err
	}
	return o.run(ctx, l, log)
}

// run runs the daemon until ctx is done. It serves l and closes it. If l is nil, run listens on o.socket.
func (o options) run(ctx context.Context, l net.Listener, log io.Writer) (err error) {
	if o.socket == "" {
		o.socket = DefaultSocket
		if l != nil {
			o.socket = l.Addr().String()
		} else if o.hostPrefix == "" {
			o.socket = SocketPath("")
		}
	}
	if l == nil && o.hostPrefix != "" {
		o.socket = filepath.Join(o.hostPrefix, o.socket)
	}
	if l == nil {
		if _, err := checkSocket(o.socket); err != nil {
			return err
		}
	}
	if o.pidFile != "" {
		if _, err := os.Stat(filepath.Dir(o.pidFile)); err != nil {
			return fmt.Errorf("write pid file: %w", err)
		}
	}
	store := StoreOf(o.socket)
	unlock, err := lockStore(store, 2*releaseTimeout) // a plugin may be releasing a lease
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("another DHCP daemon keeps its leases in %s; stop it first", store.Dir)
	}
	if err == nil {
		defer unlock()
		if l == nil {
			l, err = listen(o.socket)
		}
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if o.pidFile != "" {
		if err := hostfile.Write(o.pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			return fmt.Errorf("write pid file: %w", err)
		}
		defer func() { _ = os.Remove(o.pidFile) }()
	}
	retry := dhcp4.Retry{First: min(2*time.Second, o.resendMax), Max: o.resendMax}
	return o.serve(ctx, l, &machine{
		store: store, timeout: o.timeout,
		open: func(r record) (iface, error) { return openLink(r, retry) },
		log:  func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) },
	})
}

// serve runs the machine and the server until ctx is done.
func (o options) serve(ctx context.Context, l net.Listener, m *machine) error {
	clock, err := newBootClock()
	if err != nil {
		return err
	}
	defer clock.close()
	if m.boot, err = readBootID(); err != nil {
		return err
	}
	m.clock = clock
	m.init()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		defer stop()
		failed <- m.run(ctx)
	}()
	m.log("the DHCP daemon listens at %s, and keeps its leases in %s", o.socket, m.store.Dir)
	served := (&server{machine: m, options: o}).serve(ctx, l)
	stop()
	return errors.Join(served, <-failed)
}

// lockStore locks the directory of the lease files, and creates it if it does not exist. The kernel unlocks it when the
// process ends. If another process holds the lock for longer than limit, the error matches os.ErrDeadlineExceeded.
func lockStore(s Store, limit time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := hostfile.Open(filepath.Join(s.Dir, ".lock"), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock.Flock(fd, limit); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return func() { _ = unix.Close(fd) }, nil
}

// listen creates the socket, which only root can use. It replaces a socket that was left by a killed daemon.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	stale, err := checkSocket(path)
	if err == nil && stale {
		err = os.Remove(path)
	}
	if err != nil {
		return nil, err
	}
	// The kernel creates the socket with the mode of the descriptor (unix_bind_bsd in net/unix/af_unix.c), so that other users
	// cannot connect before the mode of the file is changed.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		controlErr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(controlErr, err)
	}}
	return config.Listen(context.Background(), "unix", path)
}

// maxSocket is the maximum length of a socket path in bytes. sun_path holds 108 bytes, including a zero byte (unix(7)).
const maxSocket = 107

// checkSocket returns an error if the daemon cannot listen on a path. stale is true if the path is a socket on which no
// process listens.
func checkSocket(path string) (stale bool, err error) {
	if len(path) > maxSocket {
		return false, fmt.Errorf("listen at %s: want a path of at most %d bytes, got %d; choose another -socketpath", path, maxSocket, len(path))
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return false, fmt.Errorf("listen at %s: not a socket; remove it, or choose another -socketpath", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return false, fmt.Errorf("listen at %s: another daemon answers there; stop it first", path)
	}
	return errors.Is(err, syscall.ECONNREFUSED), nil
}

// inheritedSocket returns the socket that systemd has opened for this process (sd_listen_fds(3)),
// or nil if there is none. It does not use go-systemd's package
// activation, which imports crypto/tls.
func inheritedSocket(environ []string) (net.Listener, error) {
	var pid, n string
	for _, setting := range environ {
		if v, ok := strings.CutPrefix(setting, "LISTEN_PID="); ok {
			pid = v
		}
		if v, ok := strings.CutPrefix(setting, "LISTEN_FDS="); ok {
			n = v
		}
	}
	if pid != strconv.Itoa(os.Getpid()) || n == "" || n == "0" {
		return nil, nil
	}
	if n != "1" {
		return nil, fmt.Errorf("LISTEN_FDS: want 1 socket of systemd, got %s", n)
	}
	const first = 3 // SD_LISTEN_FDS_START
	f := os.NewFile(first, "LISTEN_FDS")
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket that systemd passes: %w", err)
	}
	return l, nil
}
