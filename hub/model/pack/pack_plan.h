// PackPlan: the sizes of a package, and which tensors `pack` would keep, quantise or leave out. It
// is made from headers and texts alone; no weights are read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hub/model/config.h"
#include "hub/model/pack/pack_options.h"

namespace moex {

struct PackPlan {
    struct Part {
        std::uint64_t tensors = 0, bytes = 0;
    };
    std::string name;
    ModelConfig config;
    std::uint32_t group_size = 0;         // group size of INT4 experts
    std::map<std::string, Part> formats;  // tensors that `pack` reads, by format in the file
    std::uint64_t input_bytes = 0;
    std::uint64_t hub_bytes = 0, text_bytes = 0;
    std::uint64_t draft_head_bytes = 0;           // of the head that drafts tokens; 0: none
    std::uint64_t num_blobs = 0, blob_bytes = 0;  // number of expert blobs; bytes of one blob
    // matrices of experts by format: taken over bit for bit, and converted or quantised
    std::map<std::string, std::uint64_t> kept, converted;
    std::vector<std::string> warnings;

    std::uint64_t output_bytes() const {
        return hub_bytes + text_bytes + draft_head_bytes + num_blobs * blob_bytes;
    }
    // Returns the number of contributors with `memory_bytes` each that hold every expert once; 0 if
    // not even one expert fits.
    std::uint64_t contributors(std::uint64_t memory_bytes) const;
};
// Opens a model and plans its package. Errors are those of pack_checkpoint() before it writes.
Result<PackPlan> plan_package(const std::filesystem::path& model, const PackOptions& options);

// Returns `options` with the smallest group of INT4 experts (32, 64 or 128) that needs no more
// bytes for the package than `options` do. If `may_code_hub`, a hub of plain elements may become
// int8 codes to make room. Small groups with a hub in codes lose less than large groups with a
// plain hub, which is rounded when it is served (bench/results/quantiser.demo.csv). Returns
// `options` unchanged if no experts are quantised, or if the package keeps the checkpoint's codes.
Result<PackOptions> with_smallest_group(const std::filesystem::path& model,
                                        const PackOptions& options, bool may_code_hub);

}  // namespace moex
