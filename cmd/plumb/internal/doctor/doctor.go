// Package doctor finds what is wrong with the container networks of a node: in their configurations, the plugins'
// executables, the kernel, and what the node holds for containers. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
)

// A Finding is one thing that is wrong.
type Finding struct {
	Check string `json:"check"` // the name of the check
	Where string `json:"where"` // FILE:LINE, FILE, "node" or "kernel"
	What  string `json:"what"`
	// Mend is a command for sh that mends it or, after "edit: ", what a person has to do.
	Mend string `json:"mend"`
}

// edit begins a Mend that is no command.
const edit = "edit: "

// IsCommand reports whether Mend is a command.
func (f Finding) IsCommand() bool { return !strings.HasPrefix(f.Mend, edit) }

// Options says where to look.
type Options struct {
	node.Places
	Files []string // configuration files; empty: those of ConfDir
	// Timeout is the time that one call of a plugin may take.
	Timeout time.Duration
	Wire    bool // ask other hosts whether they use the addresses of containers
	// Live returns the list of live containers. It is called once, after the inventory is read; nil: there is no list.
	Live     func(*node.Inventory) (node.LiveList, error)
	LiveFile string // the file of the list, for plumb gc; "-": stdin
	Flags    string // the flags of plumb gc for the same places, with a space before each
	// Spare are the folders from which a missing executable can be copied, if they have it.
	Spare []string
}

// A Report is the result of an examination.
type Report struct {
	Findings    []Finding `json:"findings"`    // sorted by Where
	Files       []string  `json:"files"`       // the configurations that were read
	Executables []string  `json:"executables"` // of the plugins that they name
	Attachments int       `json:"attachments"` // how many the node has
	// LeftOut is the number of attachments that may be leftovers, but may also be made by an ADD that has not ended: they
	// are younger than a minute, or their age is not known.
	LeftOut int      `json:"leftOut"`
	Checks  []string `json:"checks"` // the names of the checks that were made
	// Unread has the errors of what could not be examined.
	Unread []string `json:"unread"`
}

// A check finds one kind of mistake.
type check struct {
	name string
	find func(*examination) []Finding
}

// checks are the checks in their order. Later ones leave out the networks in which earlier ones found something
// that explains theirs (examination.broken).
func checks() []check {
	return []check{
		{"syntax", findSyntax}, {"file-kind", findFileKind}, {"no-configuration", findNone},
		{"duplicate-name", findDuplicates}, {"order", findOrder}, {"keys", findKeys},
		{"executable", findExecutables}, {"versions", findVersions}, {"mixed-versions", findMixed},
		{"ranges", findRanges}, {"overlap", findOverlaps}, {"route", findRoutes},
		{"bridge", findBridges}, {"master", findMasters},
		{"link-kind", findLinkKinds}, {"ipv6", findIPv6}, {"status", findStatus},
	}
}

// stateChecks are the checks of what the node holds. They are left out if files are given.
func stateChecks() []check {
	return []check{
		{"leftover", findLeftovers}, {"no-network", findNoNetworks}, {"reservation", findReservations}, {"elements", findElements}, {"chain", findChains},
		{"forward-drop", findForwardDrop}, {"route-localnet", findLocalnet},
		{"check", findDamaged},
	}
}

// An examination is the state of one run.
type examination struct {
	Options
	ctx    context.Context
	files  []*file
	links  []nl.Link
	conn   *nl.Conn
	report *Report
	// executables are the executables that were found, by the type of the plugin.
	executables    map[string]*executable
	broken         map[*file]bool
	inventory      *node.Inventory           // nil: files are given, and what the node holds is not examined
	nft            *nft.Conn                 // nil: the kernel has no nf_tables
	list           node.LiveList             // of live containers
	plan           *node.Plan                // nil: there is no list
	leftover       map[*node.Attachment]bool // that findLeftovers found
	explained      map[*node.Attachment]bool // with a finding that explains why their CHECK fails
	doubles        map[double]bool           // that findReservations found
	live           []*node.Attachment        // the liveAttachments of findReservations
	containerAddrs map[*node.Attachment]addrsRead
}

// Examine examines the node of this process. progress is called when it has read what the node holds, before it calls
// plugins, and then with the name of each check before it.
func (o Options) Examine(ctx context.Context, progress func(check string)) (*Report, error) {
	h, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	e := &examination{Options: o, ctx: ctx, broken: map[*file]bool{}, leftover: map[*node.Attachment]bool{}, explained: map[*node.Attachment]bool{}, doubles: map[double]bool{}, containerAddrs: map[*node.Attachment]addrsRead{}, report: &Report{
		Findings: []Finding{}, Files: []string{}, Executables: []string{}, Checks: []string{}, Unread: []string{},
	}}
	if err := e.readNode(h); err != nil {
		return nil, err
	}
	progress("executables")
	e.findPrograms()
	todo := checks()
	if len(o.Files) == 0 {
		todo = append(todo, stateChecks()...)
	}
	if len(o.Files) == 0 && o.Wire {
		todo = append(todo, check{"wire", findWire})
	}
	for _, c := range todo {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		progress(c.name)
		e.run(c)
	}
	slices.SortStableFunc(e.report.Findings, func(a, b Finding) int { return cmp.Compare(fileOf(a.Where), fileOf(b.Where)) })
	return e.report, nil
}

// readNode reads what the checks need.
func (e *examination) readNode(h *ns.Handle) (err error) {
	if e.conn, err = nl.Open(h); err != nil {
		return err
	}
	if e.links, err = e.conn.Links(); err != nil {
		return err
	}
	if err := e.readFiles(); err != nil {
		return err
	}
	e.nft, err = openNFT(h)
	e.unread("nftables", err)
	if len(e.Files) > 0 {
		return nil
	}
	return e.readInventory()
}

// readInventory reads what the node holds, and then the list of live containers.
func (e *examination) readInventory() (err error) {
	if e.inventory, err = e.Read(); err != nil {
		return err
	}
	e.report.Attachments = len(e.inventory.Attachments)
	for _, problem := range e.inventory.Unread {
		if !slices.ContainsFunc(e.report.Files, func(f string) bool { return strings.HasPrefix(problem, f+":") }) {
			e.report.Unread = append(e.report.Unread, problem) // what is wrong with a file is a finding
		}
	}
	if e.Live == nil {
		return nil
	}
	if e.list, err = e.Live(e.inventory); err == nil {
		e.plan, err = node.NewPlan(e.inventory, e.list, node.Selection{MinAge: maxAddTime, Force: true})
	}
	return err
}

// run makes one check.
func (e *examination) run(c check) {
	e.report.Checks = append(e.report.Checks, c.name)
	for _, f := range c.find(e) {
		f.Check = c.name
		e.report.Findings = append(e.report.Findings, f)
	}
}

// fileOf returns the file of a Where, so that findings stay in the order of their lines.
func fileOf(where string) string {
	if file, _, ok := strings.Cut(where, ":"); ok {
		return file
	}
	return where
}

// unread records the error of a part that could not be examined. A nil error is none.
func (e *examination) unread(what string, err error) {
	if err == nil {
		return
	}
	if text := fmt.Sprintf("%s: %v", what, err); !slices.Contains(e.report.Unread, text) {
		e.report.Unread = append(e.report.Unread, text)
	}
}
