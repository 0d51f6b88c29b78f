package datastore

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// A ledger records which container uses which address, from the return of its ADD to the call of its DEL.
type ledger struct {
	sync.Mutex
	containers  map[netip.Addr]string
	duplicates  []string
	onDuplicate func()
	adds        int
	firstAdd    chan struct{} // closed by the first ADD
	lastAdd     time.Time
	longest     time.Duration // the longest time without a successful ADD
}

func newLedger() *ledger {
	return &ledger{containers: map[netip.Addr]string{}, onDuplicate: func() {}, firstAdd: make(chan struct{}), lastAdd: time.Now()}
}

// added records that ADD returned addresses for a container.
func (l *ledger) added(container string, addrs ...netip.Addr) {
	l.Lock()
	defer l.Unlock()
	for _, a := range addrs {
		if other, taken := l.containers[a]; taken {
			l.duplicates = append(l.duplicates, fmt.Sprintf("%v was allocated to %s, but %s uses it", a, container, other))
			l.onDuplicate()
		}
		l.containers[a] = container
	}
	if l.adds++; l.adds == 1 {
		close(l.firstAdd)
	}
	l.longest, l.lastAdd = max(l.longest, time.Since(l.lastAdd)), time.Now()
}

// removed records that a call of DEL will follow, or that the container's node stopped.
func (l *ledger) removed(container string, addrs ...netip.Addr) {
	l.Lock()
	defer l.Unlock()
	for _, a := range addrs {
		if l.containers[a] == container {
			delete(l.containers, a)
		}
	}
}

// uses reports whether the container uses the address.
func (l *ledger) uses(a netip.Addr, container string) bool {
	l.Lock()
	defer l.Unlock()
	return l.containers[a] == container
}
