package undo

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestRollbackRunsTheNewestFirstAndAllDespiteErrors(t *testing.T) {
	var ran []string
	boom := errors.New("boom")
	var s Stack
	for _, name := range []string{"a", "b", "c"} {
		s.Push("undo "+name, func() error {
			ran = append(ran, name)
			if name == "b" {
				return boom
			}
			return nil
		})
	}
	err := s.Rollback()
	if want := []string{"c", "b", "a"}; !reflect.DeepEqual(ran, want) {
		t.Errorf("ran %v, want %v", ran, want)
	}
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "undo b: boom") {
		t.Errorf("error %v does not name the inverse that failed", err)
	}
	if s.Len() != 0 {
		t.Errorf("%d inverses left after a rollback", s.Len())
	}
}

func TestPanicDoesNotStopRollback(t *testing.T) {
	ran := false
	var s Stack
	s.Push("undo a", func() error { ran = true; return nil })
	s.Push("undo b", func() error { panic("ouch") })
	if err := s.Rollback(); !ran || err == nil || err.Error() != "undo b: panic: ouch" {
		t.Errorf("ran %t, error %v", ran, err)
	}
}

func TestRollbackAfterCommitDoesNothing(t *testing.T) {
	var s Stack
	s.Push("undo", func() error { t.Error("ran after a commit"); return nil })
	s.Commit()
	if err := s.Rollback(); err != nil {
		t.Error(err)
	}
}
