// Names a thread for `top -H`, a debugger or a profile.
#pragma once

#if defined(__linux__)
#include <pthread.h>
#endif

namespace moex {

// Names the calling thread; `name` has at most 15 letters. Does nothing where the system has no
// thread names.
inline void name_thread([[maybe_unused]] const char* name) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace moex
