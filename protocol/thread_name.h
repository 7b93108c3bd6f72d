// What a thread is called in `top -H`, a debugger or a profile.
#pragma once

#if defined(__linux__)
#include <pthread.h>
#endif

namespace moex {

// The one that calls; at most 15 letters. Nothing where the system has no names for them.
inline void name_thread([[maybe_unused]] const char* name) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace moex
