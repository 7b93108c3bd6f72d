// Output of commands with checked writes. If the disk is full or the pipe is closed, the command
// prints a sentence and returns a failed exit code; it never succeeds silently.
#pragma once

#include <string_view>

namespace moex {

// Writes text to stdout without delay. Returns false if the write failed; finish_output() then
// reports the reason.
bool print_now(std::string_view content);

// Flushes stdout and returns the exit code: `code` itself, or exit_failed with a sentence on stderr
// if the command succeeded but a write to stdout failed.
int finish_output(int code);

// Opens those of descriptors 0, 1 and 2 that are closed on /dev/null, for reading only. A file that
// the program opens later then never becomes stdout, and printing to a closed stdout still fails.
// Call this function before opening files.
void hold_standard_descriptors();

}  // namespace moex
