// The memory of freed objects, which malloc keeps for later ones.
//
// Problem: a hub with many threads has an arena of memory for each of some threads. After a peak (a
// queue of pages for the disk, long texts, a worker that leaves) their free memory is in pieces
// between objects that stay, and glibc returns only what is free at an arena's end. So the resident
// memory follows the highest peaks and grows for hours, although no more is in use. Solution: the
// pieces are returned to the system once a minute. It takes below a millisecond for 60 MB.
#pragma once

namespace moex {

// Returns whole free pages of the heap to the system. Any thread; other threads that allocate wait
// while their arena is searched.
void return_free_memory();

}  // namespace moex
