// Checkpoint: read access to a Hugging Face checkpoint folder, which has config.json and the
// tensors of one or many safetensors shards. Tensors are read in pieces with pread, not mapped. If
// a shard shrinks during a read, pread reports an error, while a mapping would raise SIGBUS. Pages
// that were read do not count as memory of this process.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/model/package/safetensors.h"
#include "protocol/sha256.h"

namespace moex {

class Checkpoint {
  public:
    struct Tensor {
        SafetensorsEntry entry;
        std::size_t shard_index = 0;
    };
    // Opens a checkpoint and reads the headers of its shards: those in
    // model.safetensors.index.json, or model.safetensors alone, or the only *.safetensors.
    static Result<Checkpoint> open(const std::filesystem::path& directory);
    Checkpoint(Checkpoint&&) noexcept = default;

    const std::filesystem::path& directory() const { return directory_; }
    const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
    const Tensor* find(std::string_view name) const;
    // Returns the beginning of an error message about a tensor:
    // "DIR/model-00001-of-00002.safetensors: tensor NAME".
    std::string where(const Tensor& tensor) const;
    // Returns the path of the shard that has the tensor.
    std::shared_ptr<const std::string> file_of(const Tensor& tensor) const {
        return shards_[tensor.shard_index].name;
    }
    // Reads bytes [first_byte, first_byte + out.size()) of the tensor. Thread-safe.
    Status read_bytes(const Tensor& tensor, std::uint64_t first_byte,
                      std::span<std::byte> out) const;
    // Reads elements [first, first + out.size()) of a tensor in bf16, f16 or f32 as f32. `scratch`
    // is a reused buffer. Thread-safe.
    Status read_floats(const Tensor& tensor, std::uint64_t first, std::span<float> out,
                       Bytes& scratch) const;

    std::uint64_t tensor_bytes() const;  // of all shards
    // Returns a fingerprint of the checkpoint that changes when a shard changes. It depends on
    // names, sizes, modification times and headers of the shards. Tensors are not read.
    std::string fingerprint() const;

  private:
    class Fd {
      public:
        explicit Fd(int fd) : fd_(fd) {}
        Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
        Fd& operator=(Fd&&) = delete;
        ~Fd();
        int get() const { return fd_; }

      private:
        int fd_;
    };
    struct Shard {
        std::filesystem::path path;
        std::shared_ptr<const std::string> name;
        Fd fd;
        std::uint64_t file_bytes = 0;
        std::int64_t modified_ns = 0;
        Sha256 header_hash{};
    };
    Checkpoint() = default;
    Status add_shard(const std::filesystem::path& path);

    std::filesystem::path directory_;
    // Bytes that the headers of further shards may have. The limit applies to all headers and the
    // index together.
    std::uint64_t header_bytes_left_ = safetensors_header_bytes_max;
    std::vector<Shard> shards_;
    std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace moex
