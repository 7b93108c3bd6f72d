// Gives a thread a name that `top -H`, a debugger or a profile shows.
#pragma once

#if defined(__linux__)
#include <pthread.h>
#endif

namespace moex {

// Names the calling thread; `name` has at most 15 letters. Does nothing on systems that have no
// thread names.
inline void name_thread([[maybe_unused]] const char* name) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace moex
