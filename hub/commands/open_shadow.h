// A shadow by the name that people give it, made ready to run beside the model (`serve --prefetch
// shadow:NAME`, `predict --shadow NAME`).
#pragma once

#include <memory>
#include <string>

#include "hub/commands/load_model.h"

namespace moex {

// DIR, which `pack --shadow` wrote; DIR:N, N experts of it a token; served:N, so many of the
// model's own.
struct NamedShadow {
    std::string folder;       // empty: the model's own experts
    std::uint32_t top_k = 0;  // 0: as many as the model's
};
NamedShadow named_shadow(const std::string& given);

// What a served shadow runs on. The model outlives it.
struct ShadowParts {
    std::unique_ptr<ThreadPool> threads;  // half as many as the model's, at least one
    std::unique_ptr<ExpertBackend> own, fewer;
    ExpertBackend* experts = nullptr;  // one of these, or the model's
    std::unique_ptr<Decoder> decoder;  // a twin of the model's
};
// Requires model.decoder. `unsupported` for the model's own experts where they are not here.
Result<ShadowParts> open_shadow(const std::string& given, const LoadedModel& model);

}  // namespace moex
