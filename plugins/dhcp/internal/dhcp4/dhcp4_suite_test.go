package dhcp4

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestDHCP4(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/dhcp/internal/dhcp4")
}
