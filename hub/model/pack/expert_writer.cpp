#include "hub/model/pack/expert_writer.h"

#include <algorithm>
#include <cstring>

#include "hub/model/pack/quantize.h"
#include "protocol/half.h"

namespace moex {
namespace {

// number of tensor elements that a thread holds in memory at a time
constexpr std::size_t window_elements = 1u << 18;

// Returns the kind of a tensor, which tensors of all layers and experts share: the last two parts
// of its name, e.g. "experts.gate_proj" of model.layers.0.mlp.experts.7.gate_proj.weight.
std::string kind_of(std::string_view name) {
    if (name.ends_with(".weight")) name.remove_suffix(7);
    std::string kind;
    for (int parts = 0; parts < 2 && !name.empty();) {
        const std::size_t dot = name.rfind('.');
        const std::string_view part = dot == std::string_view::npos ? name : name.substr(dot + 1);
        name = dot == std::string_view::npos ? "" : name.substr(0, dot);
        if (part.find_first_not_of("0123456789") == std::string_view::npos) continue;
        kind = kind.empty() ? std::string(part) : text(part, '.', kind);
        ++parts;
    }
    return kind;
}

struct Buffers {  // scratch buffers of a compute thread
    std::vector<float> floats, padded, turned, rounded;
    Bytes raw, codes, scales;
};

// One matrix of a blob, [num_rows, row_size]. If the expert's width is padded, the model's matrix
// is smaller.
struct Destination {
    std::uint64_t source_rows = 0, source_columns = 0, num_rows = 0;
    std::uint32_t row_size = 0;
    std::byte *codes = nullptr, *scale_zero = nullptr;
};

class MatrixWriter {
  public:
    MatrixWriter(const PackInput& input, const ExpertMatrix& matrix, const Destination& to,
                 Buffers& buffers)
        : input_(input),
          matrix_(matrix),
          info_(matrix.tensor->info()),
          to_(to),
          buffers_(buffers) {}

    Status write(LossMeter& losses) {
        // Each window of a transposed matrix reads all of the tensor's rows, so it has one window.
        const std::uint64_t rows_per_window = matrix_.is_transposed
                                                  ? to_.source_rows
                                                  : std::max<std::uint64_t>(
                                                        1, window_elements / to_.row_size);
        for (std::uint64_t row = 0; row < to_.source_rows; row += rows_per_window) {
            const std::uint64_t rows = std::min(rows_per_window, to_.source_rows - row);
            MOEX_TRY(input_.shape.is_mxfp4() ? keep_mxfp4(row, rows)
                     : matrix_.keeps_codes   ? keep_codes(row, rows)
                                             : write_rows(row, rows));
        }
        MOEX_TRY(write_zero_rows());

        if (matrix_.keeps_codes && squares_ == 0) losses.keep(info_);
        if (squares_ > 0) losses.add(info_, squares_, error_squares_);
        return {};
    }

  private:
    std::uint32_t group_size() const { return input_.shape.group_size; }
    std::uint32_t* codes_of(std::uint64_t row) const {
        return reinterpret_cast<std::uint32_t*>(to_.codes) + row * (to_.row_size / 8);
    }
    std::uint32_t* scales_of(std::uint64_t row) const {
        return reinterpret_cast<std::uint32_t*>(to_.scale_zero) +
               row * (to_.row_size / group_size());
    }

    // Reads weights into buffers_.floats, [rows, row_size], with zeros behind a shorter row.
    Status read(std::uint64_t row, std::uint64_t rows) {
        const std::uint64_t source_size = to_.source_columns;
        MOEX_TRY(matrix_.is_transposed  ? read_columns(row, rows)
                 : matrix_.row_step > 1 ? read_spread(row, rows)
                                        : read_rows(matrix_.first_row + row, rows));
        if (source_size == to_.row_size) return {};

        buffers_.padded.assign(rows * to_.row_size, 0.0f);
        for (std::uint64_t r = 0; r < rows; ++r)
            std::copy_n(buffers_.floats.data() + r * source_size, source_size,
                        buffers_.padded.data() + r * to_.row_size);
        buffers_.floats.swap(buffers_.padded);
        return {};
    }
    Status read_rows(std::uint64_t first, std::uint64_t rows) {
        buffers_.floats.resize(rows * info_.row_size());
        return matrix_.tensor->read_rows(first, buffers_.floats, buffers_.raw);
    }
    // Reads every row_step-th row.
    Status read_spread(std::uint64_t row, std::uint64_t rows) {
        const std::uint64_t step = matrix_.row_step, size = info_.row_size();
        MOEX_TRY(read_rows(matrix_.first_row + row * step, (rows - 1) * step + 1));
        for (std::uint64_t r = 1; r < rows; ++r)
            std::copy_n(buffers_.floats.data() + r * step * size, size,
                        buffers_.floats.data() + r * size);
        buffers_.floats.resize(rows * size);
        return {};
    }
    // Reads columns of the tensor, a few of its rows at a time.
    Status read_columns(std::uint64_t row, std::uint64_t rows) {
        const std::uint64_t size = info_.row_size(), columns = to_.source_columns,
                            rows_at_once = std::max<std::uint64_t>(1, window_elements / size);
        buffers_.turned.resize(rows * columns);
        for (std::uint64_t at = 0; at < columns; at += rows_at_once) {
            const std::uint64_t count = std::min(rows_at_once, columns - at);
            MOEX_TRY(read_rows(matrix_.first_row + at, count));
            for (std::uint64_t r = 0; r < rows; ++r) {
                const std::uint64_t from = matrix_.first_column + (row + r) * matrix_.row_step;
                for (std::uint64_t c = 0; c < count; ++c)
                    buffers_.turned[r * columns + at + c] = buffers_.floats[c * size + from];
            }
        }
        buffers_.floats.swap(buffers_.turned);
        return {};
    }

    Status write_rows(std::uint64_t row, std::uint64_t rows) {
        MOEX_TRY(read(row, rows));
        const ExpertDtype dtype = input_.options.expert_dtype;
        if (dtype != ExpertDtype::int4) {
            const std::size_t element_bytes = dtype == ExpertDtype::f32 ? 4 : 2;
            return encode_weights(buffers_.floats, dtype == ExpertDtype::f32,
                                  {to_.codes + row * to_.row_size * element_bytes,
                                   rows * to_.row_size * element_bytes},
                                  info_);
        }
        const std::uint64_t groups = to_.row_size / group_size();
        for (std::uint64_t r = 0; r < rows; ++r)
            MOEX_TRY(quantize(row + r, r * to_.row_size, 0, groups));
        return {};
    }

    // Quantises the groups [first, first + num) of a row from the weights at buffers_.floats[at].
    // Measures the loss if the checkpoint was quantised in another form.
    Status quantize(std::uint64_t row, std::uint64_t at, std::uint64_t first, std::uint64_t num) {
        const auto weights =
            std::span(buffers_.floats).subspan(at + first * group_size(), num * group_size());
        std::uint32_t* const codes = codes_of(row) + first * (group_size() / 8);
        std::uint32_t* const scale_zero = scales_of(row) + first;
        if (!quantize_int4_row(weights, group_size(), codes, scale_zero))
            return Error{ErrorCode::bad_file,
                         text(info_.where(), ": row ", matrix_.first_row + row,
                              " holds weights too large for an int4 scale in f16")};
        if (info_.plain) return {};

        const auto row_size = static_cast<std::uint32_t>(weights.size());
        buffers_.rounded.resize(row_size);
        dequantize_int4_row(codes, scale_zero, row_size, group_size(), buffers_.rounded.data());
        for (std::uint32_t i = 0; i < row_size; ++i) {
            const double error = double{weights[i]} - double{buffers_.rounded[i]};
            squares_ += double{weights[i]} * double{weights[i]};
            error_squares_ += error * error;
        }
        return {};
    }

    // Takes MXFP4 codes and scales over, every row_step-th row.
    Status keep_mxfp4(std::uint64_t row, std::uint64_t rows) {
        const std::uint64_t step = matrix_.row_step, first = matrix_.first_row + row * step,
                            read = (rows - 1) * step + 1, code_bytes = to_.row_size / 2,
                            scale_bytes = to_.row_size / mxfp4_block;
        buffers_.codes.resize(read * code_bytes);
        buffers_.scales.resize(read * scale_bytes);
        MOEX_TRY(matrix_.tensor->read_mxfp4(
            first, {read, buffers_.codes.data(), buffers_.scales.data()}, buffers_.raw));
        for (std::uint64_t r = 0; r < rows; ++r) {
            const std::byte* const scales = buffers_.scales.data() + r * step * scale_bytes;
            for (std::uint64_t i = 0; i < scale_bytes; ++i)
                if (std::to_integer<unsigned>(scales[i]) > mxfp4_scale_max)
                    return refuse_scale(first + r * step);
            std::memcpy(to_.codes + (row + r) * code_bytes,
                        buffers_.codes.data() + r * step * code_bytes, code_bytes);
            std::memcpy(to_.scale_zero + (row + r) * scale_bytes, scales, scale_bytes);
        }
        return {};
    }
    // The row has a scale that is NaN or above 2^125. Reading its weights names the first NaN.
    Status refuse_scale(std::uint64_t row) {
        MOEX_TRY(read_rows(row, 1));
        return Error{ErrorCode::unsupported,
                     text(info_.where(), ": row ", row, " holds a scale above 2^125")};
    }

    // Takes codes over. A group with a scale that GPUs may flush to zero is quantised again.
    Status keep_codes(std::uint64_t row, std::uint64_t rows) {
        MOEX_TRY(matrix_.tensor->read_int4(matrix_.first_row + row,
                                           {rows, group_size(), codes_of(row), scales_of(row)},
                                           buffers_.raw));
        for (std::uint64_t r = row; r < row + rows; ++r)
            for (std::uint64_t g = 0; g < to_.row_size / group_size(); ++g) {
                const std::uint32_t scale = scales_of(r)[g] & 0x7fffu;
                if (scale == 0 || (scale >= 0x400u && scale < 0x7c00u)) continue;
                MOEX_TRY(mend_group(r, g, scale));
            }
        return {};
    }
    Status mend_group(std::uint64_t row, std::uint64_t group, std::uint32_t scale) {
        if (scale >= 0x7c00u)
            return Error{ErrorCode::non_finite,
                         text(info_.where(), " holds a scale that is not finite in row ",
                              matrix_.first_row + row)};
        if (input_.options.keep_format)
            return Error{ErrorCode::unsupported,
                         text(info_.where(), ": row ", matrix_.first_row + row,
                              " has a scale below 2^-14, which GPUs may flush to zero; leave "
                              "--keep-format out to quantise its group again")};
        MOEX_TRY(read(row, 1));
        return quantize(row, 0, group, 1);
    }

    // Rows of the padding: weights of zero.
    Status write_zero_rows() {
        if (to_.source_rows == to_.num_rows) return {};
        const std::uint64_t rows = to_.num_rows - to_.source_rows;
        if (input_.options.expert_dtype != ExpertDtype::int4) {
            const std::size_t row_bytes =
                to_.row_size * (input_.options.expert_dtype == ExpertDtype::f32 ? 4u : 2u);
            std::memset(to_.codes + to_.source_rows * row_bytes, 0, rows * row_bytes);
            return {};
        }
        const std::vector<float> zeros(to_.row_size);
        for (std::uint64_t row = to_.source_rows; row < to_.num_rows; ++row)
            if (!quantize_int4_row(zeros, group_size(), codes_of(row), scales_of(row)))
                return Error{ErrorCode::internal, "a row of zeros has no INT4 codes"};
        return {};
    }

    const PackInput& input_;
    const ExpertMatrix& matrix_;
    const TensorInfo& info_;
    const Destination& to_;
    Buffers& buffers_;
    double squares_ = 0, error_squares_ = 0;
};

// Writes the biases as f32: gate values, then up values, each with zeros for the padding, and down.
Status write_biases(const PackInput& input, const ExpertBiases& biases, std::span<std::byte> blob) {
    const std::size_t inner = input.inner_size, padded = input.shape.moe_intermediate_size;
    std::vector<float> read(2 * inner), gate_up(2 * padded), down(input.shape.hidden_size);
    Bytes raw;
    MOEX_TRY(biases.gate_up->read_rows(biases.expert, read, raw));
    for (std::size_t i = 0; i < inner; ++i) {
        gate_up[i] = read[biases.alternates ? 2 * i : i];
        gate_up[padded + i] = read[biases.alternates ? 2 * i + 1 : inner + i];
    }
    MOEX_TRY(biases.down->read_rows(biases.expert, down, raw));
    std::memcpy(blob.data() + input.layout.gate_up_bias.offset_bytes, gate_up.data(),
                gate_up.size() * sizeof(float));
    std::memcpy(blob.data() + input.layout.down_bias.offset_bytes, down.data(),
                down.size() * sizeof(float));
    return {};
}

}  // namespace

void LossMeter::add(const TensorInfo& tensor, double squares, double error_squares) {
    const std::string kind = kind_of(tensor.name);
    const std::lock_guard lock(mutex_);
    PackLoss& loss = losses_.requantized[text(kind, " (", tensor.format, ")")];
    loss.squares += squares;
    loss.error_squares += error_squares;
    ++loss.num_matrices;
    if (const double nmse = error_squares / squares; nmse > loss.worst_nmse || loss.worst.empty()) {
        loss.worst_nmse = nmse;
        loss.worst = tensor.name;
    }
}

void LossMeter::keep(const TensorInfo& tensor) {
    const std::lock_guard lock(mutex_);
    ++losses_.kept[tensor.format];
}

PackLosses LossMeter::losses() const {
    const std::lock_guard lock(mutex_);
    return losses_;
}

Status encode_weights(std::span<const float> values, bool as_f32, std::span<std::byte> out,
                      const TensorInfo& tensor) {
    if (as_f32) {
        std::memcpy(out.data(), values.data(), values.size_bytes());
        return {};
    }

    std::uint32_t overflow = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bfloat16 rounded = float_to_bfloat16(values[i]);
        overflow |= (rounded & 0x7f80u) == 0x7f80u ? 1u : 0u;
        std::memcpy(out.data() + 2 * i, &rounded, 2);
    }

    if (overflow != 0)
        return Error{ErrorCode::non_finite,
                     text(tensor.where(), " holds a weight too large for bf16")};
    return {};
}

Status write_expert_blob(const PackInput& input, const ExpertSource& source, LossMeter& losses,
                         std::span<std::byte> blob) {
    const ExpertBlobLayout& layout = input.layout;
    const std::uint32_t hidden = input.shape.hidden_size, inner = input.shape.moe_intermediate_size;
    std::byte* const gate_up = blob.data() + layout.gate_up_codes.offset_bytes;
    std::byte* const gate_up_scale = blob.data() + layout.gate_up_scale_zero.offset_bytes;
    Buffers buffers;
    const auto write = [&](const ExpertMatrix& matrix, const Destination& to) {
        return MatrixWriter(input, matrix, to, buffers).write(losses);
    };

    const std::uint64_t inner_size = input.inner_size;
    MOEX_TRY(write(source.gate, {inner_size, hidden, inner, hidden, gate_up, gate_up_scale}));
    MOEX_TRY(write(source.up, {inner_size, hidden, inner, hidden,
                               gate_up + layout.gate_up_codes.size_bytes / 2,
                               gate_up_scale + layout.gate_up_scale_zero.size_bytes / 2}));
    MOEX_TRY(write(source.down,
                   {hidden, inner_size, hidden, inner, blob.data() + layout.down_codes.offset_bytes,
                    blob.data() + layout.down_scale_zero.offset_bytes}));
    return source.biases ? write_biases(input, *source.biases, blob) : Status{};
}

}  // namespace moex
