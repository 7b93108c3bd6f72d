// GgufFile: the header of a GGUF file, version 3: metadata (a name and a value), then the tensors'
// names, shapes, types and offsets. The parser trusts no input: counts, lengths, shapes and offsets
// are checked against the file before memory is taken. The weights are read with pread.
//
// A model may be split over several files, which have names like NAME-00001-of-00003.gguf. The
// first one has the metadata of the model.
// Source: the description of the GGUF format in the repository of ggml.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/pack/readers/gguf_blocks.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

struct GgufTensor {
    std::string name;
    std::vector<std::uint64_t> shape;  // sizes, slowest dimension first, as in safetensors
    const GgufType* type = nullptr;
    std::uint64_t offset_bytes = 0;  // offset from the start of the file
    std::uint64_t size_bytes = 0;    // 0 if this program cannot decode the type
};

class GgufFile {
  public:
    // Reads the header of the file `path`. `header_bytes_left` is the limit for the headers of all
    // files of a model together; the function subtracts what it has read.
    static Result<std::shared_ptr<GgufFile>> open(const std::filesystem::path& path,
                                                  std::uint64_t& header_bytes_left);
    ~GgufFile();
    GgufFile(const GgufFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    // Values by name: numbers, strings, booleans, and arrays of these.
    const std::map<std::string, nlohmann::json, std::less<>>& metadata() const { return metadata_; }
    // Frees the metadata, whose tokenizer takes tens of megabytes.
    void drop_metadata() { metadata_.clear(); }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    // Reads bytes [first_byte, first_byte + out.size()) of the tensor. Thread-safe.
    Status read_bytes(const GgufTensor& tensor, std::uint64_t first_byte,
                      std::span<std::byte> out) const;
    // Changes when the file changes. Depends on name, size, modification time and header.
    const std::string& fingerprint() const { return fingerprint_; }

  private:
    friend class GgufParser;
    GgufFile() = default;
    std::filesystem::path path_;
    int fd_ = -1;
    std::map<std::string, nlohmann::json, std::less<>> metadata_;
    std::vector<GgufTensor> tensors_;
    std::string fingerprint_;
};

}  // namespace moex
