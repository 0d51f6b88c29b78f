package faults

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
)

var _ = Describe("a reboot", func() {
	It("frees space on a full disk, so that each container gets and keeps an address when it is added again", func() {
		for what, s := range shortages {
			m, p := newMachine(), newPool()
			p.makeSticky() // the records must not use the space
			p.bin = m.program("host-local")
			mountLimitedTmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			n := fullOrCI(29, 13)
			p.addContainers(n)
			s.limit(p.dataDir, 0)
			m.reboot()
			row := "reboot on a full disk (" + what + "): "
			expectAllOK(row+"ADD of the same container", n, func(i int) error {
				_, err := p.add(fmt.Sprint("live", i))
				return err
			})
			expectAllOK(row+"CHECK of the same container", n, func(i int) error { return p.do("CHECK", fmt.Sprint("live", i)) })
			expectOK(row+"each address is reserved once", func() error { return checkEqual(len(p.reservations()), n) })
			expectAllOK(row+"DEL of the same container", n, func(i int) error { return p.do("DEL", fmt.Sprint("live", i)) })
		}
	})
})
