// The perplexity of lossy modes, as `moex-hub eval --experts MODES --record` measured it for one
// package. The file losses.json is stored next to the manifest and contains the manifest's SHA-256.
// The file is not part of the package, whose identity stays the same. A package with other weights,
// default vectors or another estimator has another manifest, so that an outdated losses.json is not
// read.
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
    std::string measured_on;  // names of text, windows and arithmetic, for people to read
    // The perplexity on the text `measured_on`, keyed by mode; the key "exact" has the perplexity
    // of the exact model.
    std::map<std::string, double, std::less<>> perplexity;

    // Returns how much higher the perplexity of `mode` is than the exact one, as a share of the
    // exact one; nullopt if it was not measured.
    std::optional<double> excess_of(std::string_view mode) const;
    // Adds the figures of `newer` if they were measured on the same text; otherwise replaces all
    // figures by `newer`.
    void add(MeasuredLosses newer);
};

// Reads losses.json. The error is not_found if the package has no such file, or if the file names
// another manifest; other errors name the field that is wrong.
Result<MeasuredLosses> load_measured_losses(const ModelPackage& package);
// Returns the JSON text of losses.json.
std::string to_json_text(const MeasuredLosses& losses, std::string_view manifest_sha256);

}  // namespace moex
