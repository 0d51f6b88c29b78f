package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/ipam"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

func newIPAM() *cobra.Command {
	c := &cobra.Command{
		Use:   "ipam",
		Short: "Show and change which node owns which address, with cluster-local",
		Long: `The commands below ipam call the datastore of a network with cluster-local, with the network's configuration on this host.
They work with every datastore, and on any node of the segment.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newIPAMList(), newIPAMWho(), newIPAMCheck(), newIPAMRemoveNode(), newIPAMRename(), newIPAMResync(), newIPAMImport(),
		newIPAMVerb(datastore.Freeze, "Freeze the segment, so that no node can claim addresses or register"),
		newIPAMVerb(datastore.Thaw, "End a freeze"))
	return c
}

// An ipamRun runs a command with the network that the flags select. ctx ends when a signal arrives.
type ipamRun func(ctx context.Context, c *cobra.Command, n *ipam.Network) error

// addNetwork adds the flags that select a network, and sets the function of the command.
func addNetwork(c *cobra.Command, run ipamRun) *cobra.Command {
	places, timeout := addPlaces(c), addTimeout(c.Flags())
	var network, file, kubeconfig string
	c.Flags().StringVar(&network, "network", "", "the `network` (default: the only one with cluster-local)")
	c.Flags().StringVar(&file, "config", "", "use the network configuration in this `file`, which the runtime need not read yet")
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "for cluster-local-kubernetes, a `file` with an operator's credentials, instead of the node's")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if network != "" && file != "" {
			return usageError{errors.New("--config already selects a network; omit --network")}
		}
		inv, err := readHost(c, places)
		if err != nil {
			return err
		}
		caller := plugins.NewCaller(places.PluginPath, *timeout)
		var n *ipam.Network
		if file != "" {
			n, err = ipam.Read(inv, caller, file)
		} else {
			n, err = ipam.Find(inv, caller, network)
		}
		if errors.Is(err, node.ErrNoNetwork) || errors.Is(err, ipam.ErrNetwork) {
			return usageError{err}
		}
		if err == nil && kubeconfig != "" {
			err = n.UseKubeconfig(kubeconfig)
		}
		if err != nil {
			return err
		}
		n.Warn = func(text string) { fmt.Fprintln(c.ErrOrStderr(), "plumb: warning:", text) }
		return run(untilSignal(c.Context()), c, n)
	}
	return c
}

func newIPAMList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the nodes of a segment and the addresses that they own", Args: usage(cobra.NoArgs)}
	format := addOutput(c.Flags())
	var node string
	c.Flags().StringVar(&node, "node", "", "list one `node` and its addresses only")
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		answer, err := n.Call(ctx, datastore.List, func(r *datastore.Request) { r.Target = node })
		if err != nil {
			return err
		}
		return format.print(c.OutOrStdout(), answer, func(w io.Writer) error { return printNodes(w, answer, node != "") })
	})
}

// printNodes prints the nodes of an answer and, if addresses is set, the addresses that they own.
func printNodes(out io.Writer, answer datastore.Answer, addresses bool) error {
	owned, nodes := map[string]int{}, map[string]datastore.Node{}
	for _, o := range answer.Owners {
		owned[o.Node]++
		nodes[o.Node] = datastore.Node{Machine: "not registered"}
	}
	maps.Copy(nodes, answer.Nodes)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tADDRESSES\tLAST CALL\tMACHINE\tBOOT")
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[name]
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", name, owned[name], node.LastCall, node.Machine, node.Boot)
	}
	if addresses {
		fmt.Fprintln(w, "\nADDRESS\tSINCE")
		for _, a := range slices.SortedFunc(maps.Keys(answer.Owners), netip.Addr.Compare) {
			fmt.Fprintf(w, "%s\t%s\n", a, answer.Owners[a].Since)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s, %s, free %d%s\n", count(len(nodes), "node"), countAddresses(len(answer.Owners)), answer.Free, frozenSuffix(answer))
	return err
}

func countAddresses(n int) string {
	if n == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", n)
}

func frozenSuffix(answer datastore.Answer) string {
	if answer.Frozen == "" {
		return ""
	}
	return ", frozen since " + answer.Frozen
}

func newIPAMWho() *cobra.Command {
	c := &cobra.Command{Use: "who ADDRESS", Short: "Show which node owns an address and, on that node, which container uses it", Args: usage(cobra.ExactArgs(1))}
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		a, err := netip.ParseAddr(c.Flags().Arg(0))
		if err != nil {
			return usageError{err}
		}
		answer, err := n.Call(ctx, datastore.List, func(*datastore.Request) {})
		if err != nil {
			return err
		}
		owner, owned := answer.Owners[a]
		switch container := n.Reserved[a]; {
		case !owned && container != "":
			_, err = fmt.Fprintf(c.OutOrStdout(), "%v belongs to no node of segment %s, but container %s on this host uses it: plumb ipam check\n", a, n.Segment, container)
		case !owned:
			_, err = fmt.Fprintf(c.OutOrStdout(), "%v belongs to no node of segment %s\n", a, n.Segment)
		case owner.Node != n.Node:
			_, err = fmt.Fprintf(c.OutOrStdout(), "%v belongs to node %s since %s; run plumb ipam who there to see its container\n", a, owner.Node, owner.Since)
		case container == "":
			_, err = fmt.Fprintf(c.OutOrStdout(), "%v belongs to this node (%s) since %s, and no container uses it\n", a, owner.Node, owner.Since)
		default:
			_, err = fmt.Fprintf(c.OutOrStdout(), "%v belongs to this node (%s) since %s, and container %s uses it\n", a, owner.Node, owner.Since, container)
		}
		return err
	})
}

func newIPAMCheck() *cobra.Command {
	c := &cobra.Command{Use: "check", Short: "Compare the addresses of this node with the store",
		Long: `check compares the addresses that this node owns in the store with the files of the node and the addresses that its
containers use. It changes nothing. The exit status is 1 if they differ.`, Args: usage(cobra.NoArgs)}
	format := addOutput(c.Flags())
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		if n.Node == "" {
			return fmt.Errorf("the node has not registered in segment %s yet: cluster-local has written no state file", n.Segment)
		}
		answer, err := n.Call(ctx, datastore.List, func(*datastore.Request) {})
		if err != nil {
			return err
		}
		problems := n.Check(answer.Owners)
		err = format.print(c.OutOrStdout(), problems, func(w io.Writer) error {
			for _, p := range problems {
				printf(w, "%v: %s\n", p.Address, p.What)
				printSolution(w, p.Solution)
			}
			_, err := fmt.Fprintf(w, "node %s owns %s, of which containers use %d; %s%s\n", n.Node, countAddresses(len(n.Owned)), len(n.Reserved),
				count(len(problems), "problem"), frozenSuffix(answer))
			return err
		})
		if err == nil && len(problems) > 0 {
			err = errFound
		}
		return err
	})
}

func newIPAMRemoveNode() *cobra.Command {
	c := &cobra.Command{Use: "remove-node NODE", Short: "Remove the registration of a node that is gone, and free its addresses",
		Long: `remove-node removes the registration that it shows, and frees the node's addresses. A node that still runs would continue
to use them, so that another node's containers get the same addresses. Remove only a node that is off and will not run again.`, Args: usage(cobra.ExactArgs(1))}
	var yes, force bool
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	c.Flags().BoolVar(&force, "force", false, "do not ask Kubernetes whether the Node is ready")
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		name := c.Flags().Arg(0)
		answer, err := n.Call(ctx, datastore.List, func(r *datastore.Request) { r.Target = name })
		if err != nil {
			return err
		}
		node, registered := answer.Nodes[name]
		if !registered {
			return fmt.Errorf("node %s is not registered in segment %s; plumb ipam list shows the nodes", name, n.Segment)
		}
		if err := printNodes(c.OutOrStdout(), answer, true); err != nil {
			return err
		}
		if !force {
			ready, err := n.NodeIsReady(ctx, name)
			if err == nil && ready {
				err = fmt.Errorf("the Node %s is ready, and nothing was removed; with --force, plumb removes it nevertheless", name)
			}
			if err != nil {
				return err
			}
		}
		if err := confirm(c, yes, "Is node "+name+" off, and will it not run again?"); err != nil {
			return err
		}
		freed, err := n.Call(ctx, datastore.RemoveNode, func(r *datastore.Request) { r.Target, r.Machine, r.Boot = name, node.Machine, node.Boot })
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "removed node %s and freed %s\n", name, countAddresses(len(freed.Addresses)))
		if again, ok := freed.Nodes[name]; ok {
			return fmt.Errorf("node %s has registered again meanwhile (machine %s, boot %s), and owns its remaining addresses", name, again.Machine, again.Boot)
		}
		return nil
	})
}

func newIPAMRename() *cobra.Command {
	c := &cobra.Command{Use: "rename FORMER-NAME", Short: "Move the addresses of this node from its former name to its new name",
		Long: `rename moves the addresses that the containers of this node use to its new name. Run it on the node after you have changed
the key node or the host name. It freezes the segment, removes the registration of the former name, claims the addresses, and
ends the freeze. It removes nothing if another machine or boot has registered the former name.`, Args: usage(cobra.ExactArgs(1))}
	var yes bool
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		former := c.Flags().Arg(0)
		if n.NeedsOperator() && !c.Flags().Changed("kubeconfig") {
			return usageError{errors.New("nothing was changed, because a node cannot remove a registration; pass an operator's credentials with --kubeconfig")}
		}
		before, err := n.RegisterNewName(ctx, former)
		if err != nil {
			return err
		}
		if err := printNodes(c.OutOrStdout(), before, true); err != nil {
			return err
		}
		if err := confirm(c, yes, "Is this node the only machine with the name "+former+"?"); err != nil {
			return err
		}
		if before.Frozen == "" {
			if _, err := n.Call(ctx, datastore.Freeze, func(r *datastore.Request) { r.Node = n.Node }); err != nil {
				return err
			}
		}
		if err := moveAddresses(ctx, n, former, before); err != nil {
			return err
		}
		after, err := n.Call(ctx, datastore.List, func(r *datastore.Request) { r.Target = n.Node })
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "\nnode %s is now node %s\n", former, n.Node); err != nil {
			return err
		}
		if err := printNodes(c.OutOrStdout(), after, true); err != nil || after.Frozen == "" {
			return err
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), "the segment was frozen before; if an earlier plumb ipam rename has frozen it, run plumb ipam thaw")
		return err
	})
}

// moveAddresses removes the former name of this node, claims the addresses of its containers for the new one, and ends the
// freeze unless the segment was frozen before. After an error, the segment stays frozen, because no other node may claim the
// addresses.
func moveAddresses(ctx context.Context, n *ipam.Network, former string, before datastore.Answer) error {
	node := before.Nodes[former]
	removed, err := n.Call(ctx, datastore.RemoveNode, func(r *datastore.Request) { r.Target, r.Machine, r.Boot = former, node.Machine, node.Boot })
	if _, again := removed.Nodes[former]; err == nil && again {
		err = fmt.Errorf("node %s has registered again meanwhile", former)
	}
	if err == nil {
		err = n.Resync(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w; the segment is frozen; repeat the command, and then run plumb ipam thaw", err)
	}
	if before.Frozen != "" {
		return nil
	}
	if _, err = n.Call(ctx, datastore.Thaw, func(r *datastore.Request) { r.Node = n.Node }); err != nil {
		err = fmt.Errorf("%w; the addresses have been moved, and the segment is frozen; run plumb ipam thaw", err)
	}
	return err
}

// confirm asks the question on a terminal. Without a terminal, it returns an error unless yes is set.
func confirm(c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err != nil {
		return usageError{errors.New("nothing was removed; pass --yes if stdin is not a terminal")}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s Type yes: ", question)
	text, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err == nil && text != "yes\n" {
		err = errors.New("nothing was removed")
	}
	return err
}

func newIPAMResync() *cobra.Command {
	c := &cobra.Command{Use: "resync", Short: "Record in the store exactly the addresses that this node uses",
		Long: `resync runs cluster-local resync with the network's configuration. Run it on each node after the store was restored from a
backup. It confirms that no other machine has the identity of this one.`, Args: usage(cobra.NoArgs)}
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		if err := n.Resync(ctx); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "the store contains the addresses of this node in segment %s\n", n.Segment)
		return err
	})
}

func newIPAMImport() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Reserve and claim the addresses of containers that another IPAM plugin has assigned",
		Long: `import reserves and claims the addresses that the living containers of this node got from another IPAM plugin, such as
whereabouts or host-local, according to libcni's cache. It does not change the containers or the records of the other plugin.
It also works while the segment is frozen. The exit status is 3 if an address could not be imported.`, Args: usage(cobra.NoArgs)}
	var dryRun bool
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be imported, and change nothing")
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		all := n.Importable
		if err := printImportable(c.OutOrStdout(), all); err != nil || dryRun {
			return err
		}
		var imported []pool.Imported
		for _, i := range all {
			imported = append(imported, i.Imported)
		}
		if err := n.Import(ctx, imported); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "imported %s\n", countAddresses(len(all)))
		return err
	})
}

func printImportable(out io.Writer, all []ipam.Importable) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if len(all) > 0 {
		fmt.Fprintln(w, "ADDRESS\tCONTAINER\tIF\tFORMER IPAM")
	}
	for _, i := range all {
		fmt.Fprintf(w, "%v\t%s\t%s\t%s\n", i.Address, life.ShortID(i.ContainerID), i.IfName, i.IPAM)
	}
	return w.Flush()
}

// newIPAMVerb returns the command for freeze or thaw.
func newIPAMVerb(verb, short string) *cobra.Command {
	c := &cobra.Command{Use: verb, Short: short, Args: usage(cobra.NoArgs)}
	return addNetwork(c, func(ctx context.Context, c *cobra.Command, n *ipam.Network) error {
		state := func(answer datastore.Answer) string {
			if answer.Frozen == "" {
				return "not frozen"
			}
			return "frozen since " + answer.Frozen
		}
		first := datastore.Status
		if verb == datastore.Thaw {
			first = datastore.List // for CheckThaw
		}
		before, err := n.Call(ctx, first, func(*datastore.Request) {})
		if err == nil && verb == datastore.Thaw {
			err = n.CheckThaw(before.Owners)
		}
		if err != nil {
			return err
		}
		after, err := n.Call(ctx, verb, func(r *datastore.Request) { r.Node = n.Node })
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "segment %s was %s, and is now %s\n", n.Segment, state(before), state(after))
		return err
	})
}
