#include "hub/model/pack/readers/safetensors_readers.h"

#include <algorithm>
#include <array>

#include "hub/model/pack/readers/number_codes.h"
#include "protocol/text.h"

namespace moex {
namespace {

TensorInfo info_of(const Checkpoint& files, const Checkpoint::Tensor& tensor) {
    return {.name = tensor.entry.name,
            .shape = tensor.entry.shape,
            .file = files.file_of(tensor),
            .format = tensor.entry.dtype_word,
            .stored_bytes = tensor.entry.size_bytes};
}

bool is_plain(const Checkpoint::Tensor& tensor) {
    return tensor.entry.dtype && !is_quantized(*tensor.entry.dtype);
}

class PlainReader : public TensorReader {
  public:
    PlainReader(SharedCheckpoint files, const Checkpoint::Tensor& tensor, TensorInfo info)
        : TensorReader(std::move(info)),
          files_(std::move(files)),
          tensor_(tensor) {}

  private:
    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        const std::uint32_t element_bytes = tensor_dtype_bytes(*tensor_.entry.dtype);
        scratch.resize(out.size() * element_bytes);
        MOEX_TRY(
            files_->read_bytes(tensor_, first_row * info().row_size() * element_bytes, scratch));
        elements_to_float(*tensor_.entry.dtype, scratch.data(), out);
        return {};
    }

    SharedCheckpoint files_;
    const Checkpoint::Tensor& tensor_;
};

class Fp8Reader : public TensorReader {
  public:
    // A block has `block_rows` rows and `block_columns` columns; the last block of a matrix may be
    // smaller. The scales of a matrix with `matrix_rows` rows are [scale_rows, scale_columns].
    struct Blocks {
        std::uint64_t matrix_rows = 1, block_rows = 1, block_columns = 1, scale_rows = 1,
                      scale_columns = 1;
    };
    Fp8Reader(SharedCheckpoint files, const Checkpoint::Tensor& weight,
              const Checkpoint::Tensor& scales, Blocks blocks, TensorInfo info)
        : TensorReader(std::move(info)),
          files_(std::move(files)),
          weight_(weight),
          scales_(scales),
          blocks_(blocks) {}

  private:
    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        static const std::array<float, 256> values = [] {
            std::array<float, 256> all{};
            for (int code = 0; code < 256; ++code)
                all[static_cast<std::size_t>(code)] = e4m3_to_float(
                    static_cast<std::uint8_t>(code));
            return all;
        }();

        const std::uint64_t row_size = info().row_size();
        std::vector<float> scale(blocks_.scale_columns);
        Bytes scale_bytes;
        std::uint64_t scale_row = ~std::uint64_t{0};
        scratch.resize(out.size());
        MOEX_TRY(files_->read_bytes(weight_, first_row * row_size, scratch));

        for (std::uint64_t at = 0; at < out.size(); at += row_size) {
            const std::uint64_t row = first_row + at / row_size;
            const std::uint64_t wanted = row / blocks_.matrix_rows * blocks_.scale_rows +
                                         row % blocks_.matrix_rows / blocks_.block_rows;
            if (wanted != scale_row)
                MOEX_TRY(files_->read_floats(scales_, wanted * blocks_.scale_columns, scale,
                                             scale_bytes));
            scale_row = wanted;
            for (std::uint64_t i = 0; i < row_size; ++i)
                out[at + i] = values[std::to_integer<std::size_t>(scratch[at + i])] *
                              scale[i / blocks_.block_columns];
        }
        return {};
    }

    SharedCheckpoint files_;
    const Checkpoint::Tensor &weight_, &scales_;
    Blocks blocks_;
};

class Mxfp4Reader : public TensorReader {
  public:
    Mxfp4Reader(SharedCheckpoint files, const Checkpoint::Tensor& blocks,
                const Checkpoint::Tensor& scales, TensorInfo info)
        : TensorReader(std::move(info)),
          files_(std::move(files)),
          blocks_(blocks),
          scales_(scales) {}

    // The bytes of a block are those of an expert blob: codes 2b and 2b + 1 are in byte b.
    Status read_mxfp4(std::uint64_t first_row, const Mxfp4Rows& out, Bytes&) const override {
        const std::uint64_t row_blocks = info().row_size() / 32, first = first_row * row_blocks,
                            num_blocks = out.num_rows * row_blocks;
        MOEX_TRY(files_->read_bytes(blocks_, first * 16, {out.codes, num_blocks * 16}));
        return files_->read_bytes(scales_, first, {out.scales, num_blocks});
    }

  private:
    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        const std::uint64_t num_blocks = out.size() / 32,
                            first_block = first_row * info().row_size() / 32;
        scratch.resize(num_blocks * 17);
        const auto codes = std::span(scratch).first(num_blocks * 16),
                   scales = std::span(scratch).last(num_blocks);
        MOEX_TRY(files_->read_bytes(blocks_, first_block * 16, codes));
        MOEX_TRY(files_->read_bytes(scales_, first_block, scales));

        for (std::uint64_t block = 0; block < num_blocks; ++block) {
            const float scale = e8m0_to_float(std::to_integer<std::uint8_t>(scales[block]));
            for (std::uint64_t b = 0; b < 16; ++b) {
                const auto byte = std::to_integer<std::uint32_t>(codes[block * 16 + b]);
                out[block * 32 + 2 * b] = e2m1_to_float(byte & 15) * scale;
                out[block * 32 + 2 * b + 1] = e2m1_to_float(byte >> 4) * scale;
            }
        }
        return {};
    }

    SharedCheckpoint files_;
    const Checkpoint::Tensor &blocks_, &scales_;
};

// Returns the blocks of an FP8 weight after the shape of its scales was checked.
Result<Fp8Reader::Blocks> fp8_blocks(const Checkpoint& files, const TensorInfo& info,
                                     const Checkpoint::Tensor& scales,
                                     const Quantization& quantization) {
    const std::uint64_t rows = info.shape[info.shape.size() - 2], columns = info.shape.back(),
                        all_rows = info.num_elements() / std::max<std::uint64_t>(1, columns);
    if (quantization.block_rows == 0) {
        std::uint64_t count = 1;
        for (const std::uint64_t size : scales.entry.shape) count *= size;
        if (count != 1 && count != all_rows)
            return wrong_part(files, scales, text("1 or ", all_rows, " scales"));
        return Fp8Reader::Blocks{
            .matrix_rows = std::max<std::uint64_t>(1, all_rows),
            .block_rows = count == 1 ? std::max<std::uint64_t>(1, all_rows) : 1,
            .block_columns = std::max<std::uint64_t>(1, columns),
            .scale_rows = count};
    }

    const auto blocks_of = [](std::uint64_t size, std::uint64_t block) {
        return (size + block - 1) / block;
    };
    const Fp8Reader::Blocks blocks{.matrix_rows = std::max<std::uint64_t>(1, rows),
                                   .block_rows = quantization.block_rows,
                                   .block_columns = quantization.block_columns,
                                   .scale_rows = blocks_of(rows, quantization.block_rows),
                                   .scale_columns = blocks_of(columns, quantization.block_columns)};
    std::vector<std::uint64_t> wanted(info.shape.begin(), info.shape.end() - 2);
    wanted.insert(wanted.end(), {blocks.scale_rows, blocks.scale_columns});
    if (scales.entry.shape != wanted)
        return wrong_part(files, scales,
                          text(shape_text(wanted), " (blocks of ", blocks.block_rows, " by ",
                               blocks.block_columns, " of a weight ", shape_text(info.shape), ")"));
    return blocks;
}

}  // namespace

Error wrong_part(const Checkpoint& files, const Checkpoint::Tensor& part,
                 const std::string& wanted) {
    return {ErrorCode::bad_file, text(files.where(part), " is ", part.entry.dtype_word, " ",
                                      shape_text(part.entry.shape), ", wanted ", wanted)};
}

Reader make_plain_reader(SharedCheckpoint files, const Checkpoint::Tensor& tensor) {
    TensorInfo info = info_of(*files, tensor);
    info.is_readable = is_plain(tensor);
    if (info.is_readable) info.plain = tensor.entry.dtype;
    return std::make_unique<PlainReader>(std::move(files), tensor, std::move(info));
}

Result<Reader> make_fp8_reader(SharedCheckpoint files, const Checkpoint::Tensor& weight,
                               const Checkpoint::Tensor& scales, const Quantization& quantization) {
    TensorInfo info = info_of(*files, weight);
    info.format = "FP8";
    info.stored_bytes += scales.entry.size_bytes;
    if (info.shape.size() < 2) return wrong_part(*files, weight, "a matrix");
    if (!is_plain(scales)) return wrong_part(*files, scales, "scales in F32, BF16 or F16");

    MOEX_ASSIGN(blocks, fp8_blocks(*files, info, scales, quantization));
    return Reader(
        std::make_unique<Fp8Reader>(std::move(files), weight, scales, blocks, std::move(info)));
}

Result<Reader> make_mxfp4_reader(SharedCheckpoint files, const std::string& name,
                                 const Checkpoint::Tensor& blocks,
                                 const Checkpoint::Tensor& scales) {
    TensorInfo info = info_of(*files, blocks);
    info.format = "MXFP4";
    info.stored_bytes += scales.entry.size_bytes;
    const auto shape = blocks.entry.shape;
    if (shape.size() < 3 || shape.back() != 16 || blocks.entry.dtype_word != "U8")
        return wrong_part(*files, blocks, "U8 [..., rows, blocks, 16]");
    const std::vector<std::uint64_t> wanted(shape.begin(), shape.end() - 1);
    if (scales.entry.shape != wanted || scales.entry.dtype_word != "U8")
        return wrong_part(*files, scales, text("U8 ", shape_text(wanted)));

    info.name = name;
    info.shape = wanted;
    info.shape.back() *= 32;
    info.is_mxfp4 = true;
    return Reader(std::make_unique<Mxfp4Reader>(std::move(files), blocks, scales, std::move(info)));
}

}  // namespace moex
