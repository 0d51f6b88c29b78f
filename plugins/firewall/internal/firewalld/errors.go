package firewalld

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Errors that the operator must resolve. An error that matches one of them (errors.Is) has the code types.CodeConfig.
var (
	ErrNotRunning    = errors.New("firewalld is not running")
	ErrNotAuthorized = errors.New("not authorized")
	ErrInvalidZone   = errors.New("no such zone")
)

// conflict returns the error of AddSource for a source that is in another zone.
func conflict(source, zone string) error {
	return types.Errorf(types.CodeConfig,
		"source %s is in firewalld's zone %q; remove the source there (firewall-cmd --zone=%[2]s --remove-source=%[1]s), or configure that zone", source, zone)
}

// Error codes. A code is the beginning of firewalld's error text, the D-Bus error name, or a part of that name.
const (
	zoneAlreadySet = "ZONE_ALREADY_SET"
	zoneConflict   = "ZONE_CONFLICT"
	unknownSource  = "UNKNOWN_SOURCE"
	invalidZone    = "INVALID_ZONE"
	lockdown       = "ACCESS_DENIED"                             // firewalld.lockdown-whitelist(5)
	notAuthorized  = "NotAuthorizedException"                    // part of the name; either polkit denied the request, or the user is not root
	accessDenied   = "org.freedesktop.DBus.Error.AccessDenied"   // the bus policy denied the request
	limitExceeded  = "org.freedesktop.DBus.Error.LimitsExceeded" // this user has too many connections
	noReply        = "org.freedesktop.DBus.Error.NoReply"        // firewalld ended during the call
	noOwner        = "org.freedesktop.DBus.Error.NameHasNoOwner" // firewalld does not run; some buses return this error,
	noService      = "org.freedesktop.DBus.Error.ServiceUnknown" // and others return ServiceUnknown
)

// code returns the code of an error, or "" for an error that the bus did not return.
func code(err error) string {
	var e dbus.Error
	switch {
	case !errors.As(err, &e):
		return ""
	case e.Name == busName+".Exception":
		code, _, _ := strings.Cut(e.Error(), ":")
		return code
	case strings.Contains(e.Name, notAuthorized): // versions of firewalld differ in the rest of the name
		return notAuthorized
	}
	return e.Name
}

func isAny(err error, codes ...string) bool {
	return err != nil && slices.Contains(codes, code(err))
}

// operatorErrors lists the errors that the operator must resolve, with their codes and advice, and the command that resolves them.
var operatorErrors = []struct {
	err    error
	codes  []string
	advice string
	fix    string
}{
	{ErrNotRunning, []string{noOwner, noService}, "start it, or configure another backend", types.Command("systemctl", "start", "firewalld")},
	{ErrNotAuthorized, []string{accessDenied, notAuthorized, lockdown},
		"permit it in the policies of the bus, of polkit and of firewalld, or configure another backend", ""},
	{ErrInvalidZone, []string{invalidZone}, "create it (firewall-cmd --permanent --new-zone=NAME, then firewall-cmd --reload), or configure another zone", ""},
}

// explain adds the step, the CNI error code and, if there is any, advice to err.
func explain(step string, err error) error {
	if err == nil {
		return nil
	}
	for _, k := range operatorErrors {
		if isAny(err, k.codes...) {
			err = fmt.Errorf("%w: %w", k.err, err)
		}
		if !errors.Is(err, k.err) {
			continue
		}
		if k.fix != "" {
			err = types.Problem{Object: "firewalld", Kind: types.ProblemMissing, Fix: k.fix}.Errorf("%w", err)
		}
		return types.Errorf(types.CodeConfig, "%s: %w; %s", step, err, k.advice)
	}
	if isAny(err, "", noReply, limitExceeded) {
		return types.Errorf(types.CodeTryAgain, "%s: firewalld or its bus did not answer: %w; try again", step, err)
	}
	return fmt.Errorf("%s: %w", step, err)
}
