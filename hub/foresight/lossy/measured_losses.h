// The perplexity of lossy modes, as `moex-hub eval --experts MODES --record` measured it for one
// package. The file losses.json is stored beside the manifest and names its SHA-256. It is not part
// of the package, whose identity stays the same. A package with other weights, default vectors or
// another estimator has another manifest, so that its old file is not read.
// Example: {"manifest_sha256": "b954...", "measured_on": "val.txt, 24 windows of 512 tokens, ...",
//           "perplexity": {"exact": 25.13, "early:1": 28.25, "estimator": 26.15}}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hub/model/package/package.h"

namespace moex {

inline constexpr const char* measured_losses_file = "losses.json";

struct MeasuredLosses {
    std::string measured_on;  // text, windows and arithmetic, for people
    // The perplexity on that text by mode; the key "exact" is the model's own.
    std::map<std::string, double, std::less<>> perplexity;

    // Returns the share that `mode` adds to the exact perplexity; nullopt if it was not measured.
    std::optional<double> excess_of(std::string_view mode) const;
    // Adds newer figures of the same text, or replaces all figures if the text is another.
    void add(MeasuredLosses newer);
};

// Reads losses.json. not_found: the package has no such file, or the file names another manifest;
// other errors name the field that is wrong.
Result<MeasuredLosses> load_measured_losses(const ModelPackage& package);
// Returns the content of losses.json.
std::string to_json_text(const MeasuredLosses& losses, std::string_view manifest_sha256);

}  // namespace moex
