package watch

import (
	"slices"
	"time"
)

const (
	// MaxRepairs is how often a Limiter allows the repair of the same object within Window.
	MaxRepairs = 3
	Window     = time.Minute
)

// A Limiter limits the repairs of objects that another program deletes or changes again and again. The zero Limiter has
// allowed nothing yet.
type Limiter struct {
	repairs   map[string][]time.Time // the times within Window at which Allow allowed a repair
	postponed map[string]bool
}

// Allow divides the objects into those to repair now and those to repair later. It returns an object in postponed if it
// allowed MaxRepairs repairs within Window. After that, Allow omits the object until Forget.
func (l *Limiter) Allow(changed []string, now time.Time) (repair, postponed []string) {
	if l.repairs == nil {
		l.Forget()
	}
	for _, what := range changed {
		recent := slices.DeleteFunc(l.repairs[what], func(t time.Time) bool { return now.Sub(t) >= Window })
		switch {
		case l.postponed[what]:
		case len(recent) == MaxRepairs:
			postponed = append(postponed, what)
			l.postponed[what] = true
		default:
			repair = append(repair, what)
			recent = append(recent, now)
		}
		l.repairs[what] = recent
	}
	return repair, postponed
}

// Forget lets Allow start again with all objects.
func (l *Limiter) Forget() { l.repairs, l.postponed = map[string][]time.Time{}, map[string]bool{} }
