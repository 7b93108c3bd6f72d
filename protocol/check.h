// Macros that end the process when an invariant of this program is broken. MOEX_CHECK prints the
// values that broke the invariant. It is never used on data from outside this process. MOEX_DCHECK
// does the same in builds without NDEBUG, for inner loops.
#pragma once

#include <string>

#include "protocol/text.h"

namespace moex {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

#define MOEX_CHECK(condition, message)                                                   \
    do {                                                                                 \
        if (!(condition)) [[unlikely]]                                                   \
            ::moex::check_failed(__FILE__, __LINE__, #condition, ::moex::text(message)); \
    } while (false)

#ifdef NDEBUG
#define MOEX_DCHECK(condition, message) \
    do {                                \
    } while (false)
#else
#define MOEX_DCHECK(condition, message) MOEX_CHECK(condition, message)
#endif
