// The folder a package is written into: blobs and files under temporary names until they are whole,
// a record per finished layer in .pack-state, the manifest last. Shared by the packer and by synth.
//   .pack-state/lock          held while a packer runs
//   .pack-state/input         what is being packed, with which options: another input never resumes
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
    // Makes `directory`, or takes up an unfinished one whose input is the same. Anything else there
    // is refused, not overwritten.
    // `output_bytes`: what the whole package will take; ErrorCode::no_space when the disk has less.
    static Result<PackageOutput> open(const std::filesystem::path& directory,
                                      std::string_view input, std::uint64_t output_bytes);
    PackageOutput(PackageOutput&& other) noexcept;
    ~PackageOutput();

    // The hashes of `layer` if its record is there and every blob has its size.
    std::optional<std::vector<Sha256>> finished_layer(std::uint32_t layer,
                                                      std::uint32_t num_experts,
                                                      std::uint64_t blob_bytes) const;
    std::optional<FileRecord> finished_hub() const;
    // Stores a blob under its hash. Thread-safe.
    Result<Sha256> write_blob(ByteView blob);
    Status finish_layer(std::uint32_t layer, const std::vector<Sha256>& hashes);

    // Streams hub.safetensors: `fill(tensor, write)` calls write() with the tensor's bytes, in
    // pieces.
    using WriteBytes = std::function<Status(ByteView)>;
    Result<FileRecord> write_hub(
        std::vector<SafetensorsEntry>& tensors,
        const std::function<Status(std::size_t tensor, const WriteBytes&)>& fill);
    Result<FileRecord> write_text(std::string_view file_name, std::string_view content);
    // Writes the manifest and removes .pack-state: from here on it is a package.
    Status finish(const PackageManifest& manifest);
    // After bad input: removes everything that was written, and the folder if we made it.
    void discard();

    std::uint64_t written_bytes() const { return written_bytes_->load(); }

  private:
    PackageOutput() = default;
    // Fails where another packer works, or has finished while this one looked.
    Status take_lock(bool resumes);
    // The unfinished package is of this input; otherwise its records are cleared away.
    Status take_input(std::string_view input);
    Status write_file(const std::filesystem::path& path, ByteView content);
    std::filesystem::path directory_;
    bool made_directory_ = false;
    int lock_fd_ = -1;
    std::unique_ptr<std::atomic<std::uint64_t>> written_bytes_;
    std::unique_ptr<std::atomic<std::uint64_t>> next_temporary_;
};

}  // namespace moex
