package nft

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Conditions are what packets have to meet for the mappings of a network, in nft's
// own language: only the program nft can read them. They stand in a chain of their
// own, which all containers of the network share, and so the program runs once for
// the first of them.
type Conditions struct {
	Network string
	Text    string
	Then    string // the chain that packets which meet them go through; empty: none
}

// Chain is the name of the chain, which says all that is in it.
func (c Conditions) Chain() string {
	sum := sha512.Sum512([]byte(c.Text + "\n" + c.Then))
	return ConditionsChainPrefix(c.Network) + hex.EncodeToString(sum[:8])
}

// script is the chain in nft's language. A packet that does not meet the conditions is
// accepted as it is: nothing of ours looks at it again.
func (c Conditions) script(l Layout) string {
	then := "return"
	if c.Then != "" {
		then = "goto " + c.Then
	}
	chain := fmt.Sprintf("%s %s", l.Table, c.Chain())
	return fmt.Sprintf("add chain %s\nflush chain %s\nadd rule %s %s %s comment %q\nadd rule %s accept comment %q\n",
		chain, chain, chain, c.Text, then, l.comment(), chain, l.comment())
}

// EnsureConditions makes the chain of the conditions where it is missing or damaged,
// by the program nft. The table, and the chain to go to, must exist. What nft refuses
// has types.CodeConfig.
func (c *Conn) EnsureConditions(l Layout, cond Conditions) error {
	whole, err := c.HasConditions(l, cond)
	if err != nil || whole {
		return err
	}
	return run(c.h, cond.script(l))
}

// HasConditions reports whether the chain of the conditions is there and whole.
func (c *Conn) HasConditions(l Layout, cond Conditions) (bool, error) {
	rules, err := c.Rules(l.Table, cond.Chain())
	return err == nil && l.intact(Chain{Rules: make([]Rule, 2)}, rules), err
}

// Program finds nft. A runtime may call plugins with any PATH, so the folders where it
// is on every distribution count too.
func Program() (string, error) {
	path, err := exec.LookPath("nft")
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"} {
		candidate := filepath.Join(dir, "nft")
		if info, err := os.Stat(candidate); err == nil && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", types.Errorf(types.CodeConfig, "conditions are read by the program nft: install nftables, or leave conditionsV4 and conditionsV6 out: %w", err)
}

// programDeadline is how long nft may run.
const programDeadline = 10 * time.Second

// run feeds a script to nft in the namespace: a child belongs to the namespace of the
// thread that forks it.
func run(h *ns.Handle, script string) error {
	path, err := Program()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), programDeadline)
	defer cancel()
	var errOut strings.Builder
	err = h.Step("run nft", func() error {
		return h.Do(func() error {
			cmd := exec.CommandContext(ctx, path, "-f", "-")
			cmd.WaitDelay = programDeadline
			cmd.Stdin, cmd.Stderr = strings.NewReader(script), &errOut
			return cmd.Run()
		})
	})
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return types.Errorf(types.CodeTryAgain, "run nft: it still ran after %s and was ended: %w", programDeadline, err)
	case errors.As(err, &exit):
		return types.Errorf(types.CodeConfig, "run nft: it refuses the conditions: %s: %w", strings.Join(strings.Fields(errOut.String()), " "), err)
	}
	return fmt.Errorf("run nft: %w", err)
}
