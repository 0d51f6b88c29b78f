package datastore

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// A wire is which container has which address, as the world sees it: from the return of its ADD to the
// call of its DEL.
type wire struct {
	sync.Mutex
	containers  map[netip.Addr]string
	duplicates  []string
	onDuplicate func()
	adds        int
	lastAdd     time.Time
	longest     time.Duration // without an ADD that succeeds
}

func newWire() *wire {
	return &wire{containers: map[netip.Addr]string{}, onDuplicate: func() {}, lastAdd: time.Now()}
}

// added notes that ADD returned addresses for a container.
func (w *wire) added(container string, addrs ...netip.Addr) {
	w.Lock()
	defer w.Unlock()
	for _, a := range addrs {
		if other, taken := w.containers[a]; taken {
			w.duplicates = append(w.duplicates, fmt.Sprintf("%v is given to %s while %s has it", a, container, other))
			w.onDuplicate()
		}
		w.containers[a] = container
	}
	w.adds++
	w.longest, w.lastAdd = max(w.longest, time.Since(w.lastAdd)), time.Now()
}

// removed notes that DEL is about to be called, or that the container's node stopped.
func (w *wire) removed(container string, addrs ...netip.Addr) {
	w.Lock()
	defer w.Unlock()
	for _, a := range addrs {
		if w.containers[a] == container {
			delete(w.containers, a)
		}
	}
}

// has reports whether the container has the address.
func (w *wire) has(a netip.Addr, container string) bool {
	w.Lock()
	defer w.Unlock()
	return w.containers[a] == container
}
