// Loops over rows, compiled for wider vectors too and chosen when the program starts. The results
// are the same bits: nothing is contracted. Not for sanitizers, whose start comes too late for it.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOEX_WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define MOEX_WIDE_LOOPS
#endif
