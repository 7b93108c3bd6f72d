#include "hub/commands/version.h"

#include <cstdio>

#include "hub/commands/command.h"

namespace moex {

const char* moex_version() { return MOEX_VERSION; }

int run_version(const Invocation&) {
    std::printf("moex-hub %s\n", moex_version());
    return exit_stopped;
}

}  // namespace moex
