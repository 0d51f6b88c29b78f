package suite

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Growth says how long calls of a list take alone and beside other attachments. It is no verdict.
type Growth struct {
	Attachments int    `json:"attachments"`
	Alone       Times  `json:"alone"`
	Beside      Times  `json:"beside"`
	Error       string `json:"error,omitempty"` // why there are no times
}

// Times are the median times of calls, in milliseconds.
type Times struct {
	Add float64 `json:"add"`
	Del float64 `json:"del"`
}

// Growth measures calls on a new host, and again beside this many other attachments. Without a plugin that creates an
// interface, the other attachments are of one container.
func (s *Suite) Growth(attachments int) *Growth {
	g := &Growth{Attachments: attachments}
	bed, err := s.network.NewBed()
	if err == nil {
		defer bed.Close()
		err = g.run(&bench{Bed: bed, facts: s.facts})
	}
	if err != nil {
		g.Error = err.Error()
	}
	return g
}

func (g *Growth) run(b *bench) error {
	if why := twoAttachments(b); why != "" {
		return errors.New(why)
	}
	shared, err := b.NewContainer()
	if err == nil {
		err = b.warm()
	}
	if err == nil {
		g.Alone, err = b.measure()
	}
	for i := 0; err == nil && i < g.Attachments; i++ {
		if b.creator >= 0 {
			_, err = b.AddNew()
		} else {
			other := *shared
			other.ID += fmt.Sprintf("-%d", i)
			err = b.Add(&other)
		}
		b.Calls = nil
		if err != nil {
			err = fmt.Errorf("other attachment %d: %w", i+1, err)
		}
	}
	if err == nil {
		g.Beside, err = b.measure()
	}
	return err
}

// measure returns the times of 15 ADDs and DELs.
func (b *bench) measure() (Times, error) {
	var adds, dels []time.Duration
	for range 15 {
		c, err := b.NewContainer()
		if err != nil {
			return Times{}, err
		}
		begin := time.Now()
		err = b.Add(c)
		added := time.Now()
		if err == nil {
			err = b.Del(c)
		}
		if err != nil {
			return Times{}, err
		}
		adds, dels = append(adds, added.Sub(begin)), append(dels, time.Since(added))
	}
	return Times{median(adds), median(dels)}, nil
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
