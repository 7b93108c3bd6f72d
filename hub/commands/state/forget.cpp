// moex-hub forget: deletes the pages of keys and values that a hub keeps on disk. A hub may run at
// the same time: it computes again the pages that it no longer finds.
#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/serve/kept_pages.h"
#include "hub/commands/state_folder.h"
#include "hub/state/page_files.h"

namespace moex {

int run_forget(const Invocation& invocation) {
    const auto directory = state_folder(invocation.settings);
    if (!directory.ok()) return fail(directory.error().message);
    if (invocation.check_only) return exit_stopped;
    std::error_code failure;
    if (!std::filesystem::exists(*directory / "moex.sqlite", failure))
        return fail(text(directory->string(),
                         ": no hub keeps its state here; --state names the folder of one"));

    const auto deleted = forget_pages(kept_pages_folder(*directory));
    if (!deleted.ok()) return fail(deleted.error().message);
    (void)print_now(text(*deleted, " pages of prompts and answers deleted\n"));
    return exit_stopped;
}

}  // namespace moex
