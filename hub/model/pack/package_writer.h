// PackageOutput: the folder into which a package is written. Blobs and files have temporary names
// until they are complete. .pack-state has a record for each finished layer. The manifest is
// written last. The packer and synth share this class.
//   .pack-state/lock          held while a packer runs
//   .pack-state/input         the input and the options; a packer with another input never resumes
//   .pack-state/layer-N       the blob hashes of a finished layer
//   .pack-state/hub           hash and size of a finished hub.safetensors
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/model/package/manifest.h"
#include "hub/model/package/safetensors.h"

namespace moex {

class PackageOutput {
  public:
    // Creates `directory`, or resumes the unfinished package in it if that has the same input. Any
    // other contents of the directory are refused, not overwritten. `output_bytes` is the size of
    // the whole package. Returns ErrorCode::no_space if the disk has less free space.
    static Result<PackageOutput> open(const std::filesystem::path& directory,
                                      std::string_view input, std::uint64_t output_bytes);
    PackageOutput(PackageOutput&& other) noexcept;
    ~PackageOutput();

    // Returns the hashes of the blobs of `layer` if its record exists and every blob file has the
    // right size.
    std::optional<std::vector<Sha256>> finished_layer(std::uint32_t layer,
                                                      std::uint32_t num_experts,
                                                      std::uint64_t blob_bytes) const;
    std::optional<FileRecord> finished_hub() const;
    // Stores a blob in a file that is named by its hash. Thread-safe.
    Result<Sha256> write_blob(ByteView blob);
    Status finish_layer(std::uint32_t layer, const std::vector<Sha256>& hashes);

    // Writes hub.safetensors as a stream. `fill(tensor, write)` calls write() with the bytes of a
    // tensor, in pieces.
    using WriteBytes = std::function<Status(ByteView)>;
    Result<FileRecord> write_hub(
        std::vector<SafetensorsEntry>& tensors,
        const std::function<Status(std::size_t tensor, const WriteBytes&)>& fill);
    Result<FileRecord> write_text(std::string_view file_name, std::string_view content);
    // Writes the manifest and removes .pack-state. The folder is then a complete package.
    Status finish(const PackageManifest& manifest);
    // Removes all written files, after bad input was found. Also removes the folder if this object
    // created it.
    void discard();

    std::uint64_t written_bytes() const { return written_bytes_->load(); }

  private:
    PackageOutput() = default;
    // Locks the folder. Fails if another packer runs in the folder, or has finished there since
    // this packer checked the folder.
    Status take_lock(bool resumes);
    // Checks that the unfinished package in the folder was made from the same input. Another input
    // is an error. If there is no input file, records of finished layers are deleted, and the file
    // is written.
    Status take_input(std::string_view input);
    Status write_file(const std::filesystem::path& path, ByteView content);
    std::filesystem::path directory_;
    bool made_directory_ = false;
    int lock_fd_ = -1;
    std::unique_ptr<std::atomic<std::uint64_t>> written_bytes_;
    std::unique_ptr<std::atomic<std::uint64_t>> next_temporary_;
};

}  // namespace moex
