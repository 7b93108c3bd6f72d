// A package's weights in a tab's files; they are read in stretches, never as a whole into the
// WASM's memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "hub/model/package/manifest.h"
#include "hub/model/package/safetensors.h"
#include "web-worker/package/package_files.h"

namespace moex {

// Reads a package from files that JavaScript has opened.
class TabFiles : public PackageFiles {
  public:
    // Opens the package by the SHA-256 of its manifest.json. All files but the experts' must be
    // present under their hashes, and verified.
    static Result<std::unique_ptr<TabFiles>> open(const std::string& manifest_sha256);

    const PackageManifest& manifest() const { return manifest_; }
    // Returns the content of a file such as "tokenizer.json"; "" if the package has no such file.
    Result<std::string> text_file(const std::string& name) const;

    const ModelConfig& config() const override { return manifest_.config; }
    ExpertDtype expert_dtype() const override { return manifest_.expert_dtype; }
    std::uint32_t group_size() const override { return manifest_.group_size; }
    Result<Tensor> tensor(const std::string& name) const override;
    Status read_tensor(const std::string& name, std::uint64_t first_byte, std::uint64_t size_bytes,
                       const AppendBytes& append) const override;
    Status read_scales(const std::string& name, std::uint64_t first_byte, std::uint64_t size_bytes,
                       const AppendBytes& append) const override;
    Status read_expert(std::uint32_t layer, std::uint32_t expert,
                       const AppendBytes& append) const override;
    bool holds_experts(std::uint32_t layer) const override;

  private:
    // A tensor of the model, and its offset in hub.safetensors.
    struct Place {
        Tensor tensor;
        std::uint64_t first_byte = 0, scales_first_byte = 0;
    };
    Result<const Place*> find(const std::string& name) const;
    Status read_tensor_table();
    Status read(const std::string& hex, std::uint64_t first_byte, std::uint64_t size_bytes,
                const AppendBytes& append) const;

    PackageManifest manifest_;
    std::string hub_sha256_;
    std::map<std::string, Place> tensors_;
    mutable Bytes stretch_;
};

}  // namespace moex
