// The checks of what `serve` reads and writes before it serves. `serve --check` and `doctor` print
// them. Each check calls the functions that `serve` calls, so that both give the same verdict.
#pragma once

#include <string>
#include <vector>

#include "hub/commands/command.h"

namespace moex {

struct Finding {
    enum class Grade { ok, note, wrong } grade = Grade::ok;
    std::string words;
    std::string fix = {};  // instruction that says how to repair the problem of a note or an error
};

struct CheckedThing {
    const char* name = "";  // "settings", "model", "TLS", "state" or "store"
    Finding finding;
};

// Checks settings, model, TLS, state and the store of --store, in this order, as the user that
// would serve. If the settings are wrong, the other checks are left out. Hashes every file of the
// package. Starts nothing, and changes no file.
std::vector<CheckedThing> check_serve(const Settings& settings);

}  // namespace moex
