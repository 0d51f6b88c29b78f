package file

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWriteAll has what no filesystem does when asked.
func TestWriteAll(t *testing.T) {
	type answer struct {
		n   int
		err error
	}
	for what, c := range map[string]struct {
		answers []answer
		err     error
		done    int
	}{
		"in parts":      {[]answer{{3, nil}, {4, nil}, {3, nil}}, nil, 10},
		"interrupted":   {[]answer{{3, nil}, {-1, unix.EINTR}, {7, nil}}, nil, 10},
		"nothing taken": {[]answer{{3, nil}, {0, nil}}, io.ErrShortWrite, 3},
		"no room":       {[]answer{{3, nil}, {-1, unix.ENOSPC}}, unix.ENOSPC, 3},
	} {
		sum, calls := 0, 0
		err := WriteAll(10, func(done int) (int, error) {
			if calls == len(c.answers) {
				t.Fatalf("%s: asked once more after all %d answers", what, calls)
			}
			if done != sum {
				t.Errorf("%s: call %d goes on at %d, not %d", what, calls, done, sum)
			}
			a := c.answers[calls]
			calls++
			sum += max(a.n, 0)
			return a.n, a.err
		})
		if !errors.Is(err, c.err) || sum != c.done {
			t.Errorf("%s: %d written, %v; want %d, %v", what, sum, err, c.done, c.err)
		}
	}
	if err := WriteAll(0, func(int) (int, error) { return 0, nil }); err != nil {
		t.Errorf("nothing to write: %v", err)
	}
}
