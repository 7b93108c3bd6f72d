// ModelPackage: read access to a model package on disk. `moex-hub pack` writes these files:
//   manifest.json          config, quantisation, and the SHA-256 of every other file
//   hub.safetensors        the hub's tensors under their Hugging Face names, bf16 or f32:
//                          embeddings, attention, norms, routers, dense MLPs, head; after
//                          `pack --hub-dtype int8|int4` matrices as codes (hub_tensors.h)
//   tokenizer.json, tokenizer_config.json, generation_config.json
//                          as in the checkpoint, where it had them
//   weights/<sha256>       one blob per (layer, expert); equal blobs are one file
//   draft_head/            a package with the head of the checkpoint that drafts tokens, where it
//                          has one (draft_head.h)
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
#include <string_view>
#include <vector>

#include "hub/model/config.h"
#include "hub/model/package/embedding_form.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/model/package/tensor.h"
#include "protocol/hub_codes.h"
#include "protocol/sha256.h"

namespace moex {

inline constexpr std::string_view draft_head_name = "draft_head";
inline std::filesystem::path draft_head_folder(const std::filesystem::path& package) {
    return package / draft_head_name;
}

class ModelPackage {
  public:
    // Opens a package. Reads and checks manifest.json and the header of hub.safetensors, and checks
    // the size of every file. Hashes are left to verify_package(). Expert blobs may be missing,
    // because an operator may serve /weights from another machine. A blob file of a wrong size is
    // an error.
    static Result<std::shared_ptr<const ModelPackage>> open(const std::filesystem::path& directory);
    ~ModelPackage();

    const ModelConfig& config() const;
    const std::string& name() const;  // model id in the API, e.g. "moex-demo"
    const std::filesystem::path& directory() const;
    const std::string& manifest_sha256() const;  // SHA-256 in hex digits; identifies the package
    ExpertDtype expert_dtype() const;
    HubDtype hub_dtype() const;
    const ExpertShape& expert_shape() const;  // group_size is 0 unless experts have codes
    std::uint64_t expert_blob_bytes() const;
    const GenerationDefaults& generation_defaults() const;
    const EmbeddingForm& embedding_form() const;
    bool has_draft_head() const;  // true if the manifest names a draft head
    // Returns the package in draft_head/, which was opened with this one. Returns not_found if the
    // manifest names none, or if its folder is not on this machine; another error if the folder is
    // damaged or of another package. Callers that compute with it use open_draft_head()
    // (hub/model/package/draft_head.h).
    Result<std::shared_ptr<const ModelPackage>> draft_head() const;
    // Returns the text of a tokenizer file ("tokenizer.json", "tokenizer_config.json"), or nullopt
    // if the checkpoint of the package did not have the file.
    std::optional<std::string> tokenizer_file(std::string_view file_name) const;

    // Returns a hub tensor by its Hugging Face name. Returns not_found if the package has no such
    // tensor.
    Result<TensorView> tensor(std::string_view name) const;
    // Returns the hash of an expert's blob. `layer` must be the number of an MoE layer.
    const Sha256& blob_hash(std::uint32_t layer, std::uint32_t expert) const;
    std::filesystem::path blob_path(const Sha256& hash) const;
    // Returns true if the manifest names the blob with this hash and the blob's file existed when
    // the package was opened.
    bool has_blob(const Sha256& hash) const;
    // Returns true if file() will compute the SHA-256 of this blob, of the model or of its draft
    // head: 1 to 2 ms for 2.5 MB. A blob whose file was written to since its first use counts as
    // checked.
    bool must_hash(const Sha256& hash) const;
    std::uint32_t num_blobs() const;  // number of different blobs in the manifest
    std::uint32_t num_missing_blobs() const;
    bool holds_all_blobs() const { return num_missing_blobs() == 0; }
    // Returns an error if blobs are missing, for callers that compute with all experts on this
    // machine. The error names the number of missing blobs and the first missing one.
    Status require_all_blobs() const;
    // Returns the bytes of a blob. Its file is mapped and its SHA-256 computed at first use, and it
    // stays mapped. Error hash_mismatch or bad_file: the blob was damaged before the package was
    // opened; the other blobs can be used. If the file was written to since then, its SHA-256 is
    // computed again before its bytes are returned; see check_unchanged(). The function is
    // thread-safe. For a mapped blob, the version without `hash` takes no lock, and looks at the
    // file at most ten times a second; the version with `hash`, which serves blobs to other
    // machines, looks at every call.
    Result<ByteView> blob(std::uint32_t layer, std::uint32_t expert) const;
    Result<ByteView> blob(const Sha256& hash) const;

    // A file of the package. files() lists the files of a whole copy: manifest.json first, then
    // hub.safetensors, the checkpoint's text files, side files, each blob once ("weights/<sha256>")
    // in the order of the layers, and the files of the draft head ("draft_head/..."). Side files
    // and a draft head that are not on this machine are left out: the model computes without them.
    struct File {
        std::string name;
        Sha256 sha256{};
        std::uint64_t size_bytes = 0;
    };
    std::vector<File> files() const;
    // Returns one of files() by its hash, borrowed from the package. Returns not_found for a hash
    // that no file has.
    Result<ByteView> file(const Sha256& hash) const;

    // These functions release the memory pages of a blob, or of hub.safetensors. They are for
    // callers that have made a copy of the weights in another form. Views stay valid, and a later
    // read loads pages from the file again.
    void release_blob(std::uint32_t layer, std::uint32_t expert) const;
    void release_hub_tensors() const;

    // Checks that hub.safetensors was not written to since the package was opened. Each call also
    // checks one of the mapped blobs, in round-robin order. A call costs two stat() calls. A file
    // whose time has changed is hashed again, and callers that need the same file wait meanwhile:
    // the same bytes are accepted. Other bytes are an error, which all later calls return, too,
    // because all later results would be wrong. Side files and the draft head are not checked here.
    // Thread-safe.
    Status check_unchanged() const;
    // The decoder calls this function at every step. It is check_unchanged() without the result.
    void require_unchanged() const { (void)check_unchanged(); }
    // Calls `handler` when check_unchanged(), blob() or file() finds other bytes for the first
    // time, here or in the draft head. It is called once for each, on the thread that found them.
    // Without a handler the process then ends at once, with one sentence on stderr and exit code 1.
    // The caller sets the handler before other threads use the package.
    void on_changed_bytes(std::function<void(const Error&)> handler) const;

  private:
    ModelPackage();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
