// What start_amd64.s does, and why, for arm64.

#include "textflag.h"

DATA oneProcessor<>+0(SB)/8, $"GOMAXPRO"
DATA oneProcessor<>+8(SB)/8, $"CS=1\x00\x00\x00\x00"
GLOBL oneProcessor<>(SB), RODATA|NOPTR, $16

// The stack pointer has to stay aligned to 16 bytes, so two words become free, and both
// name the same text: of two settings of one name the first counts.
TEXT _plumb_start(SB), NOSPLIT|NOFRAME, $0
	MOVD RSP, R0
	MOVD 0(R0), R1
	ADD  $16, R0, R2
	ADD  R1<<3, R2, R2

environment:
	MOVD.P 8(R2), R3
	CBNZ   R3, environment

	SUB  $8, R2 // at the second 0
	SUB  $16, R0, R4
	MOVD R4, RSP

down:
	MOVD.P 8(R0), R3
	MOVD.P R3, 8(R4)
	CMP    R2, R0
	BLO    down

	MOVD $oneProcessor<>(SB), R3
	MOVD R3, 0(R4)
	MOVD R3, 8(R4)
	B    _rt0_arm64_linux(SB)
