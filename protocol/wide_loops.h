// MOEX_WIDE_LOOPS compiles a function with loops over rows a second time, for wider vector
// instructions. The program chooses one of the two versions when it starts. Both versions give the
// same bits, since the compiler contracts no operations. Sanitizer builds do not use it, because
// their run-time starts too late for the choice.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOEX_WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define MOEX_WIDE_LOOPS
#endif
