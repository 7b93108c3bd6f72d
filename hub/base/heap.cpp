#include "hub/base/heap.h"

#include <malloc.h>

namespace moex {

void return_free_memory() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

}  // namespace moex
