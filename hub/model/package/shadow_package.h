// ShadowPackage: read access to a shadow on disk. A shadow has the experts of a package in fewer
// bits and uses the attention, routers and head of that package. `moex-hub pack --shadow` writes
// it:
//   shadow.json       format, identity of the experts, size and SHA-256 of every other file
//   layer-N.experts   the experts of MoE layer N, one after the other: gate rows, up rows
//                     [moe_intermediate_size] of hidden_size weights, then down rows [hidden_size]
//                     of moe_intermediate_size (hub/model/package/shadow_codes.h)
// An open shadow is immutable.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hub/base/mapped_file.h"
#include "hub/model/package/package.h"
#include "hub/model/package/shadow_codes.h"

namespace moex {

struct ShadowRecord {
    ShadowDtype dtype = ShadowDtype::int3;
    std::string name;  // of the package
    // hash over the hashes of the INT4 experts from which the shadow was made; zeros if it was made
    // from a checkpoint
    Sha256 experts_sha256{};
    std::uint32_t num_experts = 0;
    ExpertShape shape;  // shape of an expert, with the group_size of the shadow's rows
    struct Layer {
        std::uint64_t size_bytes = 0;
        Sha256 sha256{};
    };
    std::map<std::uint32_t, Layer> layers;  // the MoE layers

    ShadowRow up_row() const { return {dtype, shape.hidden_size, shape.group_size}; }
    ShadowRow down_row() const { return {dtype, shape.moe_intermediate_size, shape.group_size}; }
    std::uint64_t expert_bytes() const {
        return 2 * shape.moe_intermediate_size * up_row().size_bytes() +
               shape.hidden_size * down_row().size_bytes();
    }
};
std::string shadow_record_to_json(const ShadowRecord& record);
Result<ShadowRecord> parse_shadow_record(std::string_view json_text, std::string_view what);
std::string shadow_layer_name(std::uint32_t layer);  // "layer-3.experts"
// Returns the SHA-256 over the hashes of all expert blobs in order.
Sha256 experts_hash_of(const ModelPackage& package);

class ShadowPackage {
  public:
    // Opens the shadow of `package`. If the shadow belongs to another package, the error names the
    // difference. Reads and hashes all files.
    static Result<ShadowPackage> open(const std::filesystem::path& directory,
                                      const ModelPackage& package);
    const ShadowRecord& record() const { return record_; }
    ByteView expert(std::uint32_t layer, std::uint32_t expert) const;
    std::uint64_t size_bytes() const;  // bytes of all experts, scales included

  private:
    ShadowPackage() = default;
    ShadowRecord record_;
    std::map<std::uint32_t, MappedFile> layers_;
};

}  // namespace moex
