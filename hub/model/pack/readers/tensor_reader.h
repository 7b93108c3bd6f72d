// TensorReader: one tensor of a checkpoint, whatever the format of its file. A reader gives rows as
// f32, and rows of INT4 codes where the file's codes are exactly the codes of an expert blob.
//
// A model file may store a weight transposed (GPTQ, AWQ), in blocks with their own scales (FP8,
// MXFP4, GGUF), or split over several tensors. The packer sees none of that: it asks for rows
// [out, in] of the tensor that transformers would name, e.g. rows 0..127 of
// model.layers.3.mlp.experts.7.up_proj.weight. Readers keep no weights in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/model/package/tensor.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

struct TensorInfo {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::shared_ptr<const std::string> file;  // path of the file that has the tensor
    std::string format;  // name of the format in messages: "BF16", "FP8", "Q4_K"
    // element type of a tensor stored as plain numbers; empty: stored as quantised codes and scales
    std::optional<TensorDtype> plain;
    // number of inputs that share a scale and a zero, where the codes are exactly those of an
    // expert blob (w = scale · (code − zero) with f16 scale and zero); 0 for any other format
    std::uint32_t int4_group = 0;
    bool is_mxfp4 = false;    // blocks of 32 E2M1 codes along a row, with an E8M0 scale each
    bool is_readable = true;  // false: this program cannot compute with the element type
    std::uint64_t stored_bytes = 0;

    // A matrix has rows of shape.back() elements; a vector is one row.
    std::uint64_t row_size() const { return shape.empty() ? 1 : shape.back(); }
    std::uint64_t num_elements() const;
    // Returns the beginning of an error message: "DIR/model.safetensors: tensor NAME".
    std::string where() const;
};

// Destination of INT4 rows: codes [num_rows, row_size / 8] and scale_zero [num_rows, row_size /
// group_size] as in an expert blob (protocol/tensor_format.h).
struct Int4Rows {
    std::uint64_t num_rows = 0;
    std::uint32_t group_size = 0;
    std::uint32_t* codes = nullptr;
    std::uint32_t* scale_zero = nullptr;
};

// Destination of MXFP4 rows, as in an expert blob: codes [num_rows, row_size / 2] bytes and scales
// [num_rows, row_size / 32] bytes.
struct Mxfp4Rows {
    std::uint64_t num_rows = 0;
    std::byte *codes = nullptr, *scales = nullptr;
};

class TensorReader {
  public:
    explicit TensorReader(TensorInfo info) : info_(std::move(info)) {}
    virtual ~TensorReader() = default;
    TensorReader(const TensorReader&) = delete;

    const TensorInfo& info() const { return info_; }
    // Reads the rows from `first_row` on as f32; out.size() is a whole number of rows. NaN and
    // infinity are errors that name the element. `scratch` is a reused buffer. Thread-safe.
    Status read_rows(std::uint64_t first_row, std::span<float> out, Bytes& scratch) const;
    // Reads rows of codes bit for bit. Requires info().int4_group > 0, and that it is a multiple of
    // out.group_size. Thread-safe.
    virtual Status read_int4(std::uint64_t first_row, const Int4Rows& out, Bytes& scratch) const;
    // Reads rows of MXFP4 codes and scales bit for bit. Requires info().is_mxfp4. Thread-safe.
    virtual Status read_mxfp4(std::uint64_t first_row, const Mxfp4Rows& out, Bytes& scratch) const;

  private:
    virtual Status decode_rows(std::uint64_t first_row, std::span<float> out,
                               Bytes& scratch) const = 0;
    TensorInfo info_;
};

}  // namespace moex
