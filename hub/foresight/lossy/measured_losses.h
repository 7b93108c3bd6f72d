// What lossy ways of serving cost a package, as `moex-hub eval --experts WAYS --record` measured
// it: losses.json beside the manifest whose SHA-256 it names. It is no part of the package, whose
// identity stays; with other weights, default vectors or another estimator it is not read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/package/package.h"

namespace moex {

inline constexpr const char* measured_losses_file = "losses.json";

struct MeasuredLosses {
    std::string measured_on;  // text, windows and arithmetic, for people
    // Of that text, by way; "exact": the model's own.
    std::map<std::string, double, std::less<>> perplexity;
    // MoE layers, counted from 0, that hybrid asks the estimator about: those that the quasi-hidden
    // state guessed worst.
    std::vector<std::uint32_t> hybrid_layers;

    // Over the exact model's; none: nobody measured it.
    std::optional<double> excess_of(std::string_view way) const;
    // Figures of the same text join those that are here, others take their place.
    void add(MeasuredLosses newer);
};

// not_found: the package has none, or one of another manifest; other errors name what is wrong
// with the file.
Result<MeasuredLosses> load_measured_losses(const ModelPackage& package);
// The file's text.
std::string to_json_text(const MeasuredLosses& losses, std::string_view manifest_sha256);

}  // namespace moex
