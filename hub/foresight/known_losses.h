// What the lossy way of serving costs the packages that were measured (`moex-hub eval --experts`,
// bench/results/foresight_lossy.*.csv). Of any other package it is not known, and said so.
#pragma once

#include <optional>
#include <string_view>

namespace moex {

// Perplexity on text that no part of the package has read.
struct KnownLoss {
    double exact = 0, speculative = 0;
};

// By the hash of the package's manifest: other weights or default vectors are another package.
std::optional<KnownLoss> known_loss(std::string_view manifest_sha256);

}  // namespace moex
