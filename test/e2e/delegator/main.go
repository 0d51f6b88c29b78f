// Command delegator is a test plugin that delegates all calls to another plugin, as Multus and
// flannel do. It finds the other plugin in CNI_PATH with libcni's package invoke, and adds its own
// network name, version and prevResult to the configuration. It passes only the CNI variables in
// the environment.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

func main() {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasPrefix(name, "CNI_") {
			_ = os.Unsetenv(name)
		}
	}
	if err := serve(os.Getenv("CNI_COMMAND")); err != nil {
		var e *types.Error
		if !errors.As(err, &e) {
			e = types.NewError(types.ErrInternal, err.Error(), "")
		}
		_ = e.Print()
		os.Exit(1)
	}
}

func serve(command string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	kind, conf, err := delegate(stdin)
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch command {
	case "ADD":
		result, err := invoke.DelegateAdd(ctx, kind, conf, nil)
		if err != nil {
			return err
		}
		return types.PrintResult(result, result.Version())
	case "CHECK":
		return invoke.DelegateCheck(ctx, kind, conf, nil)
	case "DEL":
		return invoke.DelegateDel(ctx, kind, conf, nil)
	case "GC":
		return invoke.DelegateGC(ctx, kind, conf, nil)
	case "STATUS":
		return invoke.DelegateStatus(ctx, kind, conf, nil)
	}
	return fmt.Errorf("unknown command %q", command)
}

// delegate returns the type and the configuration of the other plugin. The configuration is the
// value of the key "delegate", with this plugin's other keys added.
func delegate(stdin []byte) (kind string, text []byte, err error) {
	var own, conf map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &own); err != nil {
		return "", nil, err
	}
	if err := json.Unmarshal(own["delegate"], &conf); err != nil {
		return "", nil, err
	}
	for key, value := range own {
		if key != "type" && key != "delegate" {
			conf[key] = value
		}
	}
	if err := json.Unmarshal(conf["type"], &kind); err != nil {
		return "", nil, err
	}
	text, err = json.Marshal(conf)
	return kind, text, err
}
