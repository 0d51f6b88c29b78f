package datastore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// deadProxy is a variable of a runtime whose proxy does not answer. The datastore must ignore it.
const deadProxy = "HTTPS_PROXY=http://127.0.0.1:1"

// executableOf returns the path of the datastore that the request names.
func executableOf(request []byte) string {
	var r struct{ Datastore struct{ Type string } }
	if json.Unmarshal(request, &r) != nil || r.Datastore.Type == "" {
		return datastorePath
	}
	return filepath.Join(filepath.Dir(datastorePath), r.Datastore.Type)
}

// run runs the datastore of the request in a namespace, calls started with the datastore's process, and returns the output.
func run(ns *nstest.NS, request []byte, started func(*exec.Cmd)) (stdout []byte, exit int, err error) {
	cmd := exec.Command(executableOf(request))
	var out, errOut bytes.Buffer
	cmd.Env = append(os.Environ(), deadProxy)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, &errOut
	if err := ns.Start(cmd); err != nil {
		return nil, 0, err
	}
	started(cmd)
	err = cmd.Wait()
	if cmd.ProcessState.Exited() {
		err = nil
	}
	if errOut.Len() > 0 {
		err = fmt.Errorf("the datastore printed to stderr: %s", errOut.String())
	}
	return out.Bytes(), cmd.ProcessState.ExitCode(), err
}

// call runs the datastore, checks the form of the answer, and returns the answer.
func call(ns *nstest.NS, request datastore.Request) datastore.Answer {
	GinkgoHelper()
	text, err := json.Marshal(request)
	Expect(err).NotTo(HaveOccurred())
	return callText(ns, text)
}

func callText(ns *nstest.NS, request []byte) datastore.Answer {
	GinkgoHelper()
	stdout, exit, err := run(ns, request, func(*exec.Cmd) {})
	Expect(err).NotTo(HaveOccurred())
	answer, err := parse(stdout)
	Expect(err).NotTo(HaveOccurred(), string(stdout))
	Expect(exit == 0).To(Equal(answer.Error == nil), "exit status %d with %s", exit, stdout)
	return answer
}

// parse decodes an answer. Unknown keys are errors.
func parse(stdout []byte) (answer datastore.Answer, err error) {
	dec := json.NewDecoder(bytes.NewReader(stdout))
	dec.DisallowUnknownFields()
	err = dec.Decode(&answer)
	return answer, err
}

// succeed runs the datastore, and fails the spec if the answer contains an error.
func succeed(ns *nstest.NS, request datastore.Request) datastore.Answer {
	GinkgoHelper()
	answer := call(ns, request)
	if answer.Error != nil {
		Fail(fmt.Sprintf("%s: code %d, %s: %s", request.Verb, answer.Error.Code, answer.Error.Reason, answer.Error.Msg))
	}
	return answer
}

// requireError runs the datastore, and fails the spec unless the answer contains an error with this code, reason and texts.
func requireError(ns *nstest.NS, request datastore.Request, code uint, reason string, texts ...string) datastore.Answer {
	GinkgoHelper()
	answer := call(ns, request)
	Expect(answer.Error).NotTo(BeNil(), "%s succeeded: %+v", request.Verb, answer)
	Expect(*answer.Error).To(And(HaveField("Code", code), HaveField("Reason", reason)))
	for _, text := range texts {
		Expect(answer.Error.Msg).To(ContainSubstring(text))
	}
	Expect(answer.Addresses).To(BeEmpty())
	return answer
}

// rangeOf returns a range from "10.7.0.1-10.7.0.9".
func rangeOf(text string) datastore.Range {
	first, last, _ := strings.Cut(text, "-")
	return datastore.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

// A caller is a node that calls the datastore.
type caller struct {
	*cluster
	base      datastore.Request
	configure func(*datastore.Request) // sets the datastore of each request, or nil
}

// newCaller returns a node of a segment. The pool consists of the ranges.
func (c *cluster) newCaller(segment, node string, ranges ...string) caller {
	GinkgoHelper()
	base := datastore.Request{Segment: segment, Node: node, Machine: "machine-of-" + node, Boot: "boot1", Datastore: c.datastoreConfig("node", nil)}
	for _, r := range ranges {
		base.Ranges = append(base.Ranges, rangeOf(r))
	}
	return caller{cluster: c, base: base}
}

// request returns a request with the verb and these changes.
func (c caller) request(verb string, changes ...func(*datastore.Request)) datastore.Request {
	r := c.base
	r.Verb = verb
	for _, change := range changes {
		change(&r)
	}
	if c.configure != nil {
		c.configure(&r)
	}
	return r
}

func (c caller) succeed(verb string, changes ...func(*datastore.Request)) datastore.Answer {
	GinkgoHelper()
	return succeed(c.clients, c.request(verb, changes...))
}

func want(n int) func(*datastore.Request)       { return func(r *datastore.Request) { r.Want = n } }
func seen(n int64) func(*datastore.Request)     { return func(r *datastore.Request) { r.LastRevision = n } }
func node(name string) func(*datastore.Request) { return func(r *datastore.Request) { r.Node = name } }
func target(node string) func(*datastore.Request) {
	return func(r *datastore.Request) { r.Target = node }
}
func store(id string) func(*datastore.Request) { return func(r *datastore.Request) { r.Store = id } }
func registered(r *datastore.Request)          { r.Registered = true }
func boot(id string) func(*datastore.Request)  { return func(r *datastore.Request) { r.Boot = id } }
func machine(id string) func(*datastore.Request) {
	return func(r *datastore.Request) { r.Machine = id }
}

// removed sets the target of remove-node, with the machine and boot of a caller.
func removed(node string) func(*datastore.Request) {
	return func(r *datastore.Request) { r.Target, r.Machine, r.Boot = node, "machine-of-"+node, "boot1" }
}

func addresses(m map[netip.Addr]string) func(*datastore.Request) {
	return func(r *datastore.Request) { r.Addresses = m }
}

func requested(addrs ...string) func(*datastore.Request) {
	return func(r *datastore.Request) {
		for _, a := range addrs {
			r.Requested = append(r.Requested, netip.MustParseAddr(a))
		}
	}
}
