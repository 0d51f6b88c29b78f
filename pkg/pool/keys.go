package pool

import "github.com/plumb-cni/plumb/v2/pkg/types"

// Keys contains the keys in ipam. A plugin uses it as its ipam, or embeds it. A null in a list is an empty item.
type Keys struct {
	Type string `json:"type"`
	RangeKeys
	Ranges     []rawSet          `json:"ranges"`
	Routes     []types.RouteText `json:"routes"`
	DataDir    string            `json:"dataDir"`
	ResolvConf string            `json:"resolvConf"`
	Exclude    []string          `json:"exclude"`
	Cooldown   int64             `json:"cooldown"` // cooldown in seconds
	StatusFull bool              `json:"failStatusWhenFull"`
	Sticky     *string           `json:"sticky"`
	StickyFor  *int64            `json:"stickyFor"` // how long a record is kept in seconds
}

// RuntimeKeys contains the keys that come from the runtime, and the capabilities that request them. A plugin embeds it in the
// struct of its configuration.
type RuntimeKeys struct {
	Capabilities  map[string]bool `json:"capabilities"`
	RuntimeConfig struct {
		IPs      []string `json:"ips"`
		IPRanges []rawSet `json:"ipRanges"`
		MAC      string   `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
			MAC string   `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
}

type rawSet []RangeKeys

// RangeKeys contains the keys of one range.
type RangeKeys struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}
