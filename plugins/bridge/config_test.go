package main

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// parsed calls parse for a configuration.
func parsed(t *testing.T, conf string) (*config, error) {
	t.Helper()
	r := &skel.Request{Command: "CHECK", Stdin: []byte(conf), Version: types.Newest}
	if err := types.Decode(r.Stdin, &r.Conf); err != nil {
		return nil, err
	}
	return parse(r)
}

func TestDefaults(t *testing.T) {
	got, err := parsed(t, `{"name":"n","type":"bridge","isDefaultGateway":true}`)
	if err != nil {
		t.Fatal(err)
	}
	want := config{bridge: "cni0", isGateway: true, isDefaultGateway: true}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestRefusedConfigurations(t *testing.T) {
	for _, c := range []struct {
		keys string
		want string // in the text of the error
		code uint
	}{
		{`"hairpinMode":true,"promiscMode":true`, "hairpinMode: cannot set hairpin mode and promiscuous mode at the same time", types.CodeConfig},
		{`"vlan":4095`, "invalid VLAN ID 4095 (must be between 0 and 4094)", types.CodeConfig},
		{`"vlan":-1`, "invalid VLAN ID -1", types.CodeConfig},
		{`"mtu":67`, "mtu 67 must be between 68 and 65535", types.CodeConfig},
		{`"mtu":-5`, "mtu -5", types.CodeConfig},
		{`"bridge":""`, "is not an interface name", types.CodeConfig},
		{`"bridge":"../x"`, "'/', ':' and '%' are not allowed", types.CodeConfig},
		{`"bridge":"all"`, "the kernel's settings for all interfaces have that name", types.CodeConfig},
		{`"bridge":"a-name-of-16-byte"`, "is not an interface name", types.CodeConfig},
		{`"bridge":"bridge-names","vlan":100,"isGateway":true`, `"bridge-names.100" is longer than 15 bytes`, types.CodeConfig},
		{`"disableContainerInterface":true,"ipam":{"type":"host-local"}`, "disableContainerInterface: cannot use IPAM when disableContainerInterface is set to true", types.CodeConfig},
		{`"groupFwdMask":4`, "groupFwdMask 4 must be between 0 and 65535 without the bits 1, 2 and 4", types.CodeConfig},
		{`"groupFwdMask":-8`, "groupFwdMask -8", types.CodeConfig},
		{`"groupFwdMask":65544`, "groupFwdMask 65544", types.CodeConfig},
		{`"uplinkInterface":"a/b"`, "is not an interface name", types.CodeConfig},
		{`"uplinkInterface":"cni0"`, `uplinkInterface and bridge are both "cni0"`, types.CodeConfig},
		{`"proxyArp":true`, `proxyArp needs "isGateway"`, types.CodeConfig},
		{`"mac":"nonsense"`, `invalid MAC address "nonsense"`, types.CodeConfig},
		{`"mac":"01:00:5e:00:00:01"`, "unicast", types.CodeConfig},
		{`"ipMasq":true,"ipMasqBackend":"ebtables"`, "ebtables", types.CodeConfig},
		{`"ipMasqExcept":["10.0.0.0"]`, `ipMasqExcept[0]: invalid CIDR address: "10.0.0.0"; want an address with a prefix length`, types.CodeConfig},
		{`"ipMasqExcept":["fd00::/8","10.0.0.1/8"]`, "ipMasqExcept[1] 10.0.0.1/8 has bits after the prefix; write 10.0.0.0/8", types.CodeConfig},
		{`"ipMasqExcept":["10.0.0.0/8","fd00::/8","10.0.0.0/8"]`, "ipMasqExcept[2] 10.0.0.0/8 is listed twice", types.CodeConfig},
		{`"ipMasqExcept":["::/0"]`, `ipMasqExcept[0] ::/0 contains all addresses, so that nothing would be masqueraded; set "ipMasq": false`, types.CodeConfig},
		{`"vlanTrunk":[{"minID":0,"maxID":5}]`, "incorrect trunk minID parameter", types.CodeConfig},
		{`"vlanTrunk":[{"minID":1,"maxID":4095}]`, "incorrect trunk maxID parameter", types.CodeConfig},
		{`"vlanTrunk":[{"minID":9,"maxID":5}]`, "minID is greater than maxID in trunk parameter", types.CodeConfig},
		{`"vlanTrunk":[{"maxID":5}]`, "minID and maxID should be configured simultaneously, minID is missing", types.CodeConfig},
		{`"vlanTrunk":[{"minID":5}]`, "minID and maxID should be configured simultaneously, maxID is missing", types.CodeConfig},
		{`"vlanTrunk":[{"id":4095}]`, "incorrect trunk id parameter", types.CodeConfig},
		{`"vlanTrunk":[null,{"id":0}]`, "vlanTrunk[1].id: incorrect trunk id parameter", types.CodeConfig},
		{`"mtu":1,"vlan":5000,"mac":"x"`, "mtu 1 must be between", types.CodeConfig},
		{`"mtu":1,"vlan":5000,"mac":"x"`, "invalid VLAN ID 5000", types.CodeConfig},
		{`"mtu":1,"vlan":5000,"mac":"x"`, `invalid MAC address "x"`, types.CodeConfig},
	} {
		_, err := parsed(t, `{"name":"n","type":"bridge",`+c.keys+`}`)
		var coded *types.Error
		if !errors.As(err, &coded) || coded.Code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want code %d and %q", c.keys, err, c.code, c.want)
		}
	}
}

func TestTrunkIsTheSortedUnion(t *testing.T) {
	got, err := parsed(t, `{"name":"n","type":"bridge","vlanTrunk":[{"id":200},{"minID":5,"maxID":7,"id":6},{}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{5, 6, 7, 200}; !reflect.DeepEqual(got.trunk, want) {
		t.Errorf("got %v, want %v", got.trunk, want)
	}
	if !got.filtering {
		t.Error("got filtering false with a trunk, want true")
	}
}

func TestGatewaysHaveThePrefixLengthsOfTheirIPs(t *testing.T) {
	ip := func(address, gateway string) types.IP {
		gw, _ := netip.ParseAddr(gateway)
		return types.IP{Address: prefix(address), Gateway: gw}
	}
	for _, tc := range []struct {
		ips      []types.IP
		gateways string
	}{
		{nil, "[]"},
		{[]types.IP{ip("10.0.0.2/24", "")}, "[]"},
		{[]types.IP{ip("10.0.0.2/24", "0.0.0.0"), ip("fd00::2/64", "::")}, "[]"},
		{[]types.IP{ip("fd00::2/64", "fd00::1"), ip("10.0.0.2/24", "10.0.0.1")}, "[fd00::1/64 10.0.0.1/24]"},
		{[]types.IP{ip("fd00::2/64", "fd00::1"), ip("fd00::3/64", "fd00::1")}, "[fd00::1/64]"},
	} {
		if got := fmt.Sprint(gatewaysOf(tc.ips)); got != tc.gateways {
			t.Errorf("%v: got gateways %s, want %s", tc.ips, got, tc.gateways)
		}
	}
}
