package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// bursts adds many containers, a few at a time, and deletes them. The sides take turns. A sample contains the time for
// all containers, and the processor time per container.
func (r *runner) bursts() error {
	for _, s := range r.sides {
		for len(s.containers) < r.containers {
			s.containers = append(s.containers, nstest.New(s.bed))
		}
	}
	for i := range rounds(r.iterations) {
		for _, k := range order(len(r.sides), i) {
			s := r.sides[k]
			all := make([]*attachment, r.containers)
			for n := range all {
				all[n] = r.attach(s, n, fmt.Sprintf("container-%d", n))
			}
			for _, v := range r.verbs {
				total, err := together(all, v.name, r.burst)
				key := v.name + "/" + s.name
				switch {
				case err != nil && s.reference:
					r.reasons[key] = err.Error()
				case err != nil:
					return fmt.Errorf("%s: %w", s.name, err)
				default:
					r.samples[key] = append(r.samples[key], total)
				}
			}
		}
	}
	return nil
}

// rounds returns the number of bursts. A burst takes as long as many iterations.
func rounds(iterations int) int { return max(1, iterations/20) }

// together calls a verb for all attachments, and runs atATime calls in parallel.
func together(all []*attachment, verb string, atATime int) (sample, error) {
	work := make(chan *attachment)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var cpu time.Duration
	var errs []error
	begin := time.Now()
	for range atATime {
		wg.Go(func() {
			for a := range work {
				took, err := a.do(verb, execute)
				mu.Lock()
				cpu += took.cpu
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	for _, a := range all {
		work <- a
	}
	close(work)
	wg.Wait()
	total := sample{time.Since(begin), cpu / time.Duration(len(all))}
	if err := errors.Join(errs...); err != nil {
		return total, fmt.Errorf("%d containers, %d at a time: %w", len(all), atATime, err)
	}
	return total, nil
}
