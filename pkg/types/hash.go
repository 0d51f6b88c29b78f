package types

import (
	"encoding/hex"

	"golang.org/x/crypto/blake2s"
)

// Hash returns the BLAKE2s-256 hash of s (RFC 7693). Names and numbers that plumb derives from attachments and networks
// contain parts of it. The hash is not SHA-2, because a program that imports crypto/sha256 initializes Go's FIPS 140-3
// module at every start (since Go 1.24), which takes longer than all other hashing of a call. Only names that the
// reference plugins derive with SHA-512 still use it.
func Hash(s string) [blake2s.Size]byte { return blake2s.Sum256([]byte(s)) }

// ShortHash returns the first 24 hexadecimal digits of Hash(s).
func ShortHash(s string) string {
	sum := Hash(s)
	return hex.EncodeToString(sum[:12])
}
