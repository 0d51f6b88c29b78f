// Where an executable begins, before the Go runtime does.
//
// A plugin lives for milliseconds, and what it does side by side is to wait. The
// runtime makes itself ready for all processors all the same, with threads for its own
// goroutines, which wake each other across processors. With GOMAXPROCS=1 a start takes
// a tenth less, and the environment alone can say so, since the runtime reads it before
// any Go code runs. So this writes it behind the environment, where a value that
// somebody has set comes first, and goes on to the runtime's entry point. What a plugin
// starts inherits it (see pkg/invoke).
//
// build_linux.sh tells the linker (-E _plumb_start). In an executable whose linker was
// not told, and on architectures without such a file, nothing of this is there.

#include "textflag.h"

DATA oneProcessor<>+0(SB)/8, $"GOMAXPRO"
DATA oneProcessor<>+8(SB)/8, $"CS=1\x00\x00\x00\x00"
GLOBL oneProcessor<>(SB), RODATA|NOPTR, $16

// At the entry of a process the stack holds argc, argv, 0, envp, 0 and auxv, of a word
// each (System V ABI, AMD64 supplement, 3.4.1). All up to the second 0 moves down by a
// word, and the word that is free then becomes the last of envp. The stack need not be
// aligned for the runtime, which aligns it.
TEXT _plumb_start(SB), NOSPLIT|NOFRAME, $0
	MOVQ 0(SP), CX
	LEAQ 16(SP)(CX*8), BX

environment:
	MOVQ 0(BX), AX
	ADDQ $8, BX
	TESTQ AX, AX
	JNZ  environment

	SUBQ $8, BX // at the second 0
	MOVQ SP, SI
	LEAQ -8(SP), DI
	MOVQ BX, CX
	SUBQ SP, CX
	SHRQ $3, CX
	CLD
	REP; MOVSQ
	MOVQ $oneProcessor<>(SB), AX
	MOVQ AX, -8(BX)
	SUBQ $8, SP
	JMP  _rt0_amd64_linux(SB)
