// moex-hub models and rm: list the pulled checkpoints and packages, and remove one of them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"
#include "hub/commands/progress.h"
#include "hub/commands/pull/models_folder.h"
#include "hub/fetch/pull_state.h"

namespace moex {
namespace {

void print_table(const std::vector<StoredModel>& models) {
    std::size_t name_width = 4;
    for (const StoredModel& model : models) name_width = std::max(name_width, model.name.size());
    const int width = static_cast<int>(name_width);
    std::printf("%-*s  %-21s  %9s  %s\n", width, "NAME", "KIND", "SIZE", "PATH");
    for (const StoredModel& model : models)
        std::printf("%-*s  %-21s  %9s  %s\n", width, one_line(model.name).c_str(),
                    stored_kind_name(model.kind), bytes_text(model.size_bytes).c_str(),
                    one_line(model.path.string()).c_str());
}

void print_json(const std::vector<StoredModel>& models) {
    auto out = nlohmann::ordered_json::array();
    for (const StoredModel& model : models)
        out.push_back({{"name", model.name},
                       {"kind", stored_kind_name(model.kind)},
                       {"size_bytes", model.size_bytes},
                       {"commit", model.commit},
                       {"path", model.path.string()}});
    std::printf("%s\n",
                out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// Asks a person on the terminal. Everything but "y" and "yes" is a no.
bool is_confirmed(const StoredModel& model) {
    std::fprintf(stderr, "Remove the %s %s (%s, %s)? [y/N] ", stored_kind_name(model.kind),
                 one_line(model.name).c_str(), bytes_text(model.size_bytes).c_str(),
                 one_line(model.path.string()).c_str());
    char line[16] = "";
    if (std::fgets(line, sizeof line, stdin) == nullptr) return false;
    const std::string_view answer(line);
    return answer == "y\n" || answer == "Y\n" || answer == "yes\n";
}

}  // namespace

int run_models(const Invocation& invocation) {
    const std::filesystem::path folder = models_folder(invocation.settings);
    if (invocation.check_only) return exit_stopped;
    const std::vector<StoredModel> models = find_models(folder);
    if (invocation.argument("--json"))
        print_json(models);
    else if (models.empty())
        std::printf("%s holds no models; moex-hub pull OWNER/NAME fetches one\n", folder.c_str());
    else
        print_table(models);
    return exit_stopped;
}

int run_rm(const Invocation& invocation) {
    const std::string& name = *invocation.argument("NAME");
    const std::filesystem::path folder = models_folder(invocation.settings);
    const std::vector<StoredModel> models = find_models(folder);
    const auto found = std::find_if(models.begin(), models.end(),
                                    [&](const StoredModel& model) { return model.name == name; });
    if (found == models.end())
        return fail(text(folder.string(), " holds no model \"", name,
                         "\"; moex-hub models lists the names"));
    if (invocation.check_only) return exit_stopped;

    if (!invocation.argument("--yes")) {
        if (isatty(STDIN_FILENO) != 1) {
            fail("rm asks before it removes, and stdin is no terminal; --yes answers it");
            return exit_wrong_arguments;
        }
        if (!is_confirmed(*found)) {
            std::printf("%s stays\n", name.c_str());
            return exit_stopped;
        }
    }

    // A pull that writes into the folder holds its lock.
    if (found->kind == StoredKind::checkpoint || found->kind == StoredKind::unfinished_checkpoint) {
        const auto lock = PullLock::take(found->path);
        if (!lock.ok()) return fail(lock.error().message);
    }
    std::error_code failure;
    std::filesystem::remove_all(found->path, failure);
    if (failure) return fail(text(found->path.string(), ": ", failure.message()));
    if (const auto owner = found->path.parent_path(); owner != folder)
        std::filesystem::remove(owner, failure);  // fails if the owner has other models
    std::printf("%s: removed, %s are free\n", name.c_str(), bytes_text(found->size_bytes).c_str());
    return exit_stopped;
}

}  // namespace moex
