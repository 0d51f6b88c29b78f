package masq

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Keys contains the keys of masquerading in a configuration.
type Keys struct {
	IPMasq        bool     `json:"ipMasq"`
	IPMasqBackend string   `json:"ipMasqBackend"`
	IPMasqExcept  []string `json:"ipMasqExcept"`
}

// Settings contains the checked Keys.
type Settings struct {
	Enabled bool
	Backend string
	Except  []netip.Prefix // sorted
}

// Parse checks the keys. The error joins all problems.
func (k Keys) Parse() (Settings, error) {
	s := Settings{Enabled: k.IPMasq, Backend: k.IPMasqBackend}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!slices.Contains([]string{"", iptables.BackendNFTables, iptables.BackendIPTables}, s.Backend),
		"ipMasqBackend %q must be %q or %q, or left out", s.Backend, iptables.BackendNFTables, iptables.BackendIPTables)
	for i, text := range k.IPMasqExcept {
		p, err := types.ParseCIDR(text)
		if err != nil {
			reportIf(true, "ipMasqExcept[%d]: %w; want an address with a prefix length, for example 10.0.0.0/8", i, err)
			continue
		}
		reportIf(p != p.Masked(), "ipMasqExcept[%d] %s has bits after the prefix; write %s", i, text, p.Masked())
		reportIf(p.Bits() == 0, `ipMasqExcept[%d] %s contains all addresses, so that nothing would be masqueraded; set "ipMasq": false instead`, i, text)
		reportIf(slices.Contains(s.Except, p), "ipMasqExcept[%d] %s is listed twice", i, text)
		s.Except = append(s.Except, p)
	}
	slices.SortFunc(s.Except, netip.Prefix.Compare)
	return s, errors.Join(errs...)
}
