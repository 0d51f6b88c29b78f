package nl_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestNL(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pkg/nl")
}
