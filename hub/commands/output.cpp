#include "hub/commands/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hub/commands/command.h"

namespace moex {
namespace {

int first_failure = 0;  // errno of the first failed write to stdout; 0: no failure is known

void note_failure(int failure) {
    if (first_failure == 0) first_failure = failure;
}

}  // namespace

bool print_now(std::string_view content) {
    errno = 0;
    const bool arrived = std::fwrite(content.data(), 1, content.size(), stdout) == content.size() &&
                         std::fflush(stdout) == 0;
    if (!arrived) note_failure(errno);
    return arrived;
}

int finish_output(int code) {
    // Flush stdout whatever the exit code is, so that the output of an interrupted command is
    // printed too.
    const bool arrived = print_now({}) && std::ferror(stdout) == 0;
    if (arrived || code != exit_stopped) return code;

    return fail(text("stdout: ", first_failure != 0 ? std::strerror(first_failure) : "write failed",
                     "; what was printed did not arrive whole"));
}

void hold_standard_descriptors() {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(descriptor, F_GETFD) < 0)
            // gets the lowest free number, which is the closed descriptor
            (void)open("/dev/null", O_RDONLY);
}

}  // namespace moex
