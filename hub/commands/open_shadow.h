// Opens a shadow, the model's experts in fewer bits, and makes it ready to run beside the model
// (`serve --prefetch shadow:DIR`).
#pragma once

#include <memory>
#include <string>

#include "hub/commands/load_model.h"

namespace moex {

// The objects that a served shadow runs on. The model outlives them.
struct ShadowParts {
    std::unique_ptr<ThreadPool> threads;  // half as many as the model's, at least one
    std::unique_ptr<ExpertBackend> experts;
    std::unique_ptr<Decoder> decoder;  // shares the model's attention, routers and head
};
// Opens `folder`, which `moex-hub pack --shadow` wrote. Requires model.decoder. Errors name the
// file that cannot be read, or say that the shadow was made of another model.
Result<ShadowParts> open_shadow(const std::string& folder, const LoadedModel& model);

}  // namespace moex
