// What a command prints has to arrive: a full disk or a reader that left is a sentence and a
// failed exit, never a silent success.
#pragma once

#include <string_view>

namespace moex {

// Writes to stdout at once. False when it did not arrive; finish_output() then says why.
bool print_now(std::string_view content);

// Flushes stdout and returns the exit code that `code` becomes: exit_failed, with a sentence on
// stderr, when the command ended well and something it printed did not arrive.
int finish_output(int code);

// Closed standard descriptors are opened on /dev/null, for reading only: a file of ours never
// becomes stdout, and printing to a closed one still fails. Call it before anything is opened.
void hold_standard_descriptors();

}  // namespace moex
