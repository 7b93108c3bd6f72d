// A model package on disk, as `moex-hub pack` writes it and everything else reads it:
//   manifest.json          config, quantisation, and the SHA-256 of every other file
//   hub.safetensors        the hub's tensors under their Hugging Face names, bf16 or f32:
//                          embeddings, attention, norms, routers, dense MLPs, head; after
//                          `pack --hub-dtype int8|int4` matrices as codes (hub_tensors.h)
//   tokenizer.json, tokenizer_config.json, generation_config.json
//                          as in the checkpoint, where it had them
//   weights/<sha256>       one blob per (layer, expert); equal blobs are one file
// Opening maps files; nothing is copied. A package is immutable once it is open, and shared by
// shared_ptr<const ModelPackage>.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/model/config.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/model/package/tensor.h"
#include "protocol/hub_codes.h"
#include "protocol/sha256.h"

namespace moex {

class ModelPackage {
  public:
    // Reads and checks manifest.json and the header of hub.safetensors, and that every file has its
    // size; hashes are verify_package()'s.
    // Blobs may be missing: a host may serve /weights elsewhere. One of another size is an error.
    static Result<std::shared_ptr<const ModelPackage>> open(const std::filesystem::path& directory);
    ~ModelPackage();

    const ModelConfig& config() const;
    const std::string& name() const;  // e.g. "moex-demo"; the model id in the API
    const std::filesystem::path& directory() const;
    const std::string& manifest_sha256() const;  // hex: identifies the package
    ExpertDtype expert_dtype() const;
    HubDtype hub_dtype() const;
    const ExpertShape& expert_shape() const;  // group_size 0 unless int4
    std::uint64_t expert_blob_bytes() const;
    const GenerationDefaults& generation_defaults() const;
    // Text of a tokenizer file ("tokenizer.json", "tokenizer_config.json"); nullopt when the
    // checkpoint had none.
    std::optional<std::string> tokenizer_file(std::string_view file_name) const;

    // A hub tensor by its Hugging Face name; not_found when absent.
    Result<TensorView> tensor(std::string_view name) const;
    // Only MoE layers have experts.
    const Sha256& blob_hash(std::uint32_t layer, std::uint32_t expert) const;
    std::filesystem::path blob_path(const Sha256& hash) const;
    // named by the manifest, and here when the package was opened
    bool has_blob(const Sha256& hash) const;
    std::uint32_t num_blobs() const;  // that the manifest names, equal ones once
    std::uint32_t num_missing_blobs() const;
    bool holds_all_blobs() const { return num_missing_blobs() == 0; }
    // for what computes here: says how many are missing, and the first
    Status require_all_blobs() const;
    // The blob's bytes, mapped at first use and kept; thread-safe, and without a lock once mapped.
    // A blob that is no longer what it was when the package was opened ends the process, as below;
    // by its hash, for what is served to others, this is asked at every call.
    Result<ByteView> blob(std::uint32_t layer, std::uint32_t expert) const;
    Result<ByteView> blob(const Sha256& hash) const;

    // What somebody needs who computes the whole model elsewhere: manifest.json first, then
    // hub.safetensors, the checkpoint's text files, and each blob once ("weights/<sha256>").
    struct File {
        std::string name;
        Sha256 sha256{};
        std::uint64_t size_bytes = 0;
    };
    std::vector<File> files() const;
    // One of them by its hash, borrowed from the package; not_found for any other.
    Result<ByteView> file(const Sha256& hash) const;

    // The pages of a blob, or of hub.safetensors, leave this process's memory: for who has made a
    // copy in another form. Views stay valid, and reading on brings pages back from the file.
    void release_blob(std::uint32_t layer, std::uint32_t expert) const;
    void release_hub_tensors() const;

    // Ends the process with one sentence on stderr and exit 1 when hub.safetensors was written to
    // or shortened since it was opened, or the next of the mapped blobs in turn: what is computed
    // from then on is wrong. Two stat() calls; the decoder asks at every step.
    void require_unchanged() const;

  private:
    ModelPackage();
    struct State;
    std::unique_ptr<State> state_;
};

// Every hash and every shape; `progress(done_bytes, total_bytes)` may be empty. The first mismatch
// is the error.
Status verify_package(const std::filesystem::path& directory,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace moex
