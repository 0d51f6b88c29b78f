package types

// MaxIfName is the largest length of an interface name, in bytes (IFNAMSIZ of the kernel
// without the terminating zero).
const MaxIfName = 15
