// MOEX_CHECK: a broken invariant of ours ends the process
// with the values that broke it. Never used on outside data.
// MOEX_DCHECK: the same in builds without NDEBUG, for inner loops.
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
