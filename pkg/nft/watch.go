package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
)

// A Deletion is a table, set or map that was deleted. Either Table or Set is zero, because package nftables does not
// decode the table of a set.
type Deletion struct {
	Table Table
	Set   string // the name of a set or map
}

// watchBuffer is the size of the receive buffer in bytes. A notification of the kernel contains the whole object, and
// the kernel drops notifications if they do not fit.
const watchBuffer = 4 << 20

// WatchDeletions returns a channel that receives what is deleted in h from now on. The deletion of a table also deletes
// its sets. The caller must receive until the channel is closed. Closing h closes the channel. The channel is also
// closed if the socket fails, for example because the kernel dropped notifications (ENOBUFS). The error is
// ErrUnavailable if the kernel lacks the netlink sockets of netfilter.
//
// A monitor for deletions alone receives nothing, because package nftables evaluates flags&1<<type, which Go parses as
// (flags&1)<<type, and not as flags&(1<<type). Therefore WatchDeletions subscribes to all events.
func WatchDeletions(h *ns.Handle) (<-chan Deletion, error) {
	c := &Conn{h: h}
	var events chan *nftables.MonitorEvent
	err := c.step("watch nftables", func() (err error) {
		_ = c.socket.SetReadBuffer(watchBuffer) // if this fails, the buffer keeps the default size
		all := nftables.NewMonitor(nftables.WithMonitorAction(nftables.MonitorActionAny), nftables.WithMonitorObject(nftables.MonitorObjectAny))
		events, err = c.nft.AddMonitor(all)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	deletions := make(chan Deletion)
	go func() {
		defer close(deletions)
		for e := range events {
			switch object := e.Data.(type) {
			case *nftables.Table:
				if e.Type == nftables.MonitorEventTypeDelTable && e.Error == nil {
					deletions <- Deletion{Table: Table{Family(object.Family), object.Name}}
				}
			case *nftables.Set:
				if e.Type == nftables.MonitorEventTypeDelSet && e.Error == nil {
					deletions <- Deletion{Set: object.Name}
				}
			}
		}
	}()
	return deletions, nil
}
