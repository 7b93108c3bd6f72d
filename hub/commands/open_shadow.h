// Opens a shadow, the model's experts in fewer bits, and makes it ready to run with the model
// (`serve --prefetch shadow:DIR`).
#pragma once

#include <memory>
#include <string>

#include "hub/commands/load_model.h"

namespace moex {

// The objects with which a shadow runs. The model outlives these objects.
struct ShadowParts {
    std::unique_ptr<ThreadPool> threads;  // half as many threads as the model has, at least one
    std::unique_ptr<ExpertBackend> experts;
    std::unique_ptr<Decoder> decoder;  // uses the attention, routers and head of the model
};
// Returns an error for a model with recurrent states. A shadow shares the keys and values of its
// model, and a draft model is rolled back; neither is possible with a recurrent state.
Status require_keys_only(const ModelConfig& config, const std::string& folder);
// Opens the shadow in `folder`, which `moex-hub pack --shadow` wrote. Requires model.decoder. An
// error names the file that cannot be read, or says that the shadow was made from another model.
Result<ShadowParts> open_shadow(const std::string& folder, const LoadedModel& model);

}  // namespace moex
