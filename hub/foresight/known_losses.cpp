#include "hub/foresight/known_losses.h"

namespace moex {
namespace {

struct Measured {
    std::string_view manifest_sha256;
    KnownLoss loss;
};

// The demo: exact, and early:1, which is what requests may ask for.
constexpr Measured measured[] = {
    {"b954a72345ba639305f47924fc910e61b8ec22a6fd5283ab9a2db3e2b6cfc481",
     {.exact = 25.1211, .speculative = 28.2001}},
};

}  // namespace

std::optional<KnownLoss> known_loss(std::string_view manifest_sha256) {
    for (const Measured& one : measured)
        if (one.manifest_sha256 == manifest_sha256) return one.loss;
    return std::nullopt;
}

}  // namespace moex
