package life

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzRead checks that an accepted list contains only valid container IDs.
func FuzzRead(f *testing.F) {
	f.Add("a1\nb2\n")
	f.Add("POD ID\n")
	f.Add("\x00")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "live")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		list, err := Read(file, time.Now())
		if err != nil {
			return
		}
		for id := range list.IDs {
			if !types.IsID(id) {
				t.Errorf("want a valid ID, got %q", id)
			}
		}
	})
}
