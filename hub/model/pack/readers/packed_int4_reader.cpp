// Readers of GPTQ and AWQ weights: words of eight 4-bit codes, with a scale and a zero per group of
// inputs and output. Both layouts are transposed: a word row of the file has all outputs.
#include <array>
#include <cstring>

#include "hub/model/pack/readers/safetensors_readers.h"
#include "protocol/half.h"
#include "protocol/tensor_format.h"
#include "protocol/text.h"

namespace moex {
namespace {

// AWQ stores output 8c + awq_order[p] in nibble p of word c. awq_nibble is the inverse.
constexpr std::uint32_t awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

struct Parts {
    const Checkpoint::Tensor *qweight = nullptr, *qzeros = nullptr, *scales = nullptr,
                             *g_idx = nullptr;
};

struct Layout {
    bool is_awq = false;
    std::uint64_t num_in = 0, num_out = 0, num_groups = 1, group_size = 0;
    std::uint32_t zero_offset = 0;
    bool in_order = true;  // the group of input i is i / group_size, and g_idx says nothing else
};

class PackedInt4Reader : public TensorReader {
  public:
    PackedInt4Reader(SharedCheckpoint files, Parts parts, Layout layout, TensorInfo info)
        : TensorReader(std::move(info)),
          files_(std::move(files)),
          parts_(parts),
          layout_(layout) {}

    Status read_int4(std::uint64_t first_row, const Int4Rows& out, Bytes& scratch) const override {
        MOEX_ASSIGN(window, read_window(first_row, out.num_rows, scratch));
        const std::uint64_t code_words = layout_.num_in / 8,
                            groups = layout_.num_in / out.group_size;
        for (std::uint64_t r = 0; r < out.num_rows; ++r) {
            std::uint32_t* const words = out.codes + r * code_words;
            for (std::uint64_t word = 0; word < code_words; ++word)
                words[word] = layout_.is_awq ? awq_word(window, r, word)
                                             : window.words[word * window.num_words + r];

            for (std::uint64_t g = 0; g < groups; ++g) {
                const std::uint64_t group = g * out.group_size / layout_.group_size;
                out.scale_zero[r * groups + g] = pack_scale_zero(
                    window.scale_bits[group * out.num_rows + r],
                    float_to_half(zero_of(window, r, group)));
            }
        }
        return {};
    }

  private:
    // The part of the weight that belongs to some outputs.
    struct Window {
        std::uint64_t num_rows = 0;
        std::uint64_t num_words = 0;  // words of a word row: outputs (GPTQ), or outputs / 8 (AWQ)
        std::uint64_t first_nibble =
            0;  // position of the first output in the words of AWQ and zeros
        std::uint64_t zero_words = 0;
        std::vector<std::uint32_t> words, zeros;
        std::vector<float> scales;              // [num_groups, num_rows]
        std::vector<std::uint16_t> scale_bits;  // the same as in the file, if that is f16
        std::vector<std::uint32_t> groups;      // [num_in]
    };

    // Copies columns [first, first + count) of all rows of a tensor [rows, columns].
    Status read_columns(const Checkpoint::Tensor& tensor, std::uint64_t element_bytes,
                        std::uint64_t first, std::uint64_t count, std::byte* out) const {
        const std::uint64_t rows = tensor.entry.shape[0], columns = tensor.entry.shape[1];
        if (count == columns)
            return files_->read_bytes(tensor, 0, {out, rows * columns * element_bytes});
        for (std::uint64_t row = 0; row < rows; ++row)
            MOEX_TRY(
                files_->read_bytes(tensor, (row * columns + first) * element_bytes,
                                   {out + row * count * element_bytes, count * element_bytes}));
        return {};
    }

    Result<Window> read_window(std::uint64_t first_row, std::uint64_t num_rows,
                               Bytes& scratch) const {
        Window window{.num_rows = num_rows};
        const std::uint64_t first_word = first_row / 8,
                            words_of_rows = (first_row + num_rows + 7) / 8 - first_word;
        window.first_nibble = first_row % 8;
        window.zero_words = words_of_rows;
        window.num_words = layout_.is_awq ? words_of_rows : num_rows;

        window.words.resize((layout_.is_awq ? layout_.num_in : layout_.num_in / 8) *
                            window.num_words);
        MOEX_TRY(read_columns(*parts_.qweight, 4, layout_.is_awq ? first_word : first_row,
                              window.num_words, reinterpret_cast<std::byte*>(window.words.data())));
        window.zeros.resize(layout_.num_groups * words_of_rows);
        MOEX_TRY(read_columns(*parts_.qzeros, 4, first_word, words_of_rows,
                              reinterpret_cast<std::byte*>(window.zeros.data())));

        const TensorDtype scale_dtype = *parts_.scales->entry.dtype;
        const std::uint64_t scale_bytes = tensor_dtype_bytes(scale_dtype),
                            num_scales = layout_.num_groups * num_rows;
        scratch.resize(num_scales * scale_bytes);
        MOEX_TRY(read_columns(*parts_.scales, scale_bytes, first_row, num_rows, scratch.data()));
        window.scales.resize(num_scales);
        elements_to_float(scale_dtype, scratch.data(), window.scales);
        if (scale_dtype == TensorDtype::f16) {
            window.scale_bits.resize(num_scales);
            std::memcpy(window.scale_bits.data(), scratch.data(), num_scales * 2);
        }

        window.groups.resize(layout_.num_in);
        for (std::uint64_t i = 0; i < layout_.num_in; ++i)
            window.groups[i] = static_cast<std::uint32_t>(i / layout_.group_size);
        if (!layout_.in_order)
            MOEX_TRY(files_->read_bytes(*parts_.g_idx, 0,
                                        std::as_writable_bytes(std::span(window.groups))));
        return window;
    }

    std::uint32_t code_of(const Window& window, std::uint64_t row, std::uint64_t input) const {
        if (layout_.is_awq) {
            const std::uint64_t at = window.first_nibble + row;
            return window.words[input * window.num_words + at / 8] >> 4 * awq_nibble[at % 8] & 15;
        }
        return window.words[input / 8 * window.num_words + row] >> 4 * (input % 8) & 15;
    }
    float zero_of(const Window& window, std::uint64_t row, std::uint64_t group) const {
        const std::uint64_t at = window.first_nibble + row;
        const std::uint64_t nibble = layout_.is_awq ? awq_nibble[at % 8] : at % 8;
        const std::uint32_t word = window.zeros[group * window.zero_words + at / 8];
        return static_cast<float>((word >> 4 * nibble & 15) + layout_.zero_offset);
    }
    std::uint32_t awq_word(const Window& window, std::uint64_t row, std::uint64_t word) const {
        std::uint32_t packed = 0;
        for (std::uint64_t k = 0; k < 8; ++k) packed |= code_of(window, row, word * 8 + k) << 4 * k;
        return packed;
    }

    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        const std::uint64_t num_rows = out.size() / layout_.num_in;
        MOEX_ASSIGN(window, read_window(first_row, num_rows, scratch));
        std::vector<float> zeros(layout_.num_groups);
        for (std::uint64_t r = 0; r < num_rows; ++r) {
            for (std::uint64_t g = 0; g < layout_.num_groups; ++g) zeros[g] = zero_of(window, r, g);
            float* const row = out.data() + r * layout_.num_in;
            for (std::uint64_t i = 0; i < layout_.num_in; ++i) {
                const std::uint32_t group = window.groups[i];
                row[i] = window.scales[group * num_rows + r] *
                         (static_cast<float>(code_of(window, r, i)) - zeros[group]);
            }
        }
        return {};
    }

    SharedCheckpoint files_;
    Parts parts_;
    Layout layout_;
};

Result<Parts> find_parts(const Checkpoint& files, const std::string& module, bool is_awq) {
    Parts parts{.qweight = files.find(module + "qweight"),
                .qzeros = files.find(module + "qzeros"),
                .scales = files.find(module + "scales"),
                .g_idx = is_awq ? nullptr : files.find(module + "g_idx")};
    for (const auto& [part, name] : {std::pair(parts.qzeros, "qzeros"), {parts.scales, "scales"}})
        if (part == nullptr)
            return Error{ErrorCode::bad_file,
                         text(files.directory().string(), ": tensor ", module.substr(0, 200), name,
                              " is missing, but ", module.substr(0, 200), "qweight is there")};
    for (const Checkpoint::Tensor* part : {parts.qweight, parts.qzeros, parts.scales})
        if (part->entry.shape.size() != 2) return wrong_part(files, *part, "a matrix");
    for (const Checkpoint::Tensor* part : {parts.qweight, parts.qzeros})
        if (part->entry.dtype_word != "I32") return wrong_part(files, *part, "I32");
    const auto scale_dtype = parts.scales->entry.dtype;
    if (!scale_dtype || is_quantized(*scale_dtype))
        return wrong_part(files, *parts.scales, "F16, BF16 or F32");
    return parts;
}

// Reads g_idx. Every entry must name a group. Returns true if input i is in group i / group_size.
Result<bool> groups_in_order(const Checkpoint& files, const Checkpoint::Tensor& g_idx,
                             const Layout& layout) {
    if (g_idx.entry.dtype_word != "I32" ||
        g_idx.entry.shape != std::vector<std::uint64_t>{layout.num_in})
        return wrong_part(files, g_idx, text("I32 [", layout.num_in, "], a group of each input"));
    std::vector<std::uint32_t> groups(layout.num_in);
    MOEX_TRY(files.read_bytes(g_idx, 0, std::as_writable_bytes(std::span(groups))));

    bool in_order = true;
    for (std::uint64_t i = 0; i < layout.num_in; ++i) {
        if (groups[i] >= layout.num_groups)
            return Error{ErrorCode::bad_file,
                         text(files.where(g_idx), " has ", static_cast<std::int32_t>(groups[i]),
                              " at [", i, "], wanted a group of 0..", layout.num_groups - 1)};
        in_order &= groups[i] == i / layout.group_size;
    }
    return in_order;
}

Result<Layout> layout_of(const Checkpoint& files, const Parts& parts,
                         const Quantization& quantization) {
    Layout layout{.is_awq = quantization.method == QuantMethod::awq};
    const auto& weight = parts.qweight->entry.shape;
    layout.num_in = layout.is_awq ? weight[0] : weight[0] * 8;
    layout.num_out = layout.is_awq ? weight[1] * 8 : weight[1];
    layout.num_groups = parts.scales->entry.shape[0];
    layout.zero_offset = layout.is_awq ? 0 : quantization.zero_offset;
    if (layout.num_in == 0 || layout.num_out == 0 || weight[0] > 1u << 24 || weight[1] > 1u << 24)
        return wrong_part(files, *parts.qweight, "a matrix with inputs and outputs");

    layout.group_size = quantization.group_size == 0 ? layout.num_in : quantization.group_size;
    if (quantization.has_own_groups && layout.num_groups > 0 &&
        layout.num_in % layout.num_groups == 0)
        layout.group_size = layout.num_in / layout.num_groups;

    const std::uint64_t groups = (layout.num_in + layout.group_size - 1) / layout.group_size;
    if (parts.scales->entry.shape != std::vector{groups, layout.num_out})
        return wrong_part(files, *parts.scales,
                          text(shape_text(std::array{groups, layout.num_out}), " (groups of ",
                               layout.group_size, " inputs, outputs)"));
    const std::uint64_t zero_words = (layout.num_out + 7) / 8;
    if (parts.qzeros->entry.shape != std::vector{groups, zero_words})
        return wrong_part(
            files, *parts.qzeros,
            text(shape_text(std::array{groups, zero_words}), " (groups, outputs / 8)"));
    return layout;
}

}  // namespace

Result<Reader> make_packed_int4_reader(SharedCheckpoint files, const std::string& module,
                                       const Quantization& quantization) {
    const bool is_awq = quantization.method == QuantMethod::awq;
    MOEX_ASSIGN(parts, find_parts(*files, module, is_awq));
    MOEX_ASSIGN(layout, layout_of(*files, parts, quantization));
    if (parts.g_idx != nullptr) {
        MOEX_ASSIGN(in_order, groups_in_order(*files, *parts.g_idx, layout));
        layout.in_order = in_order;
    }

    TensorInfo info{.name = module + "weight",
                    .shape = {layout.num_out, layout.num_in},
                    .file = files->file_of(*parts.qweight),
                    .format = is_awq ? "AWQ" : "GPTQ"};
    for (const Checkpoint::Tensor* part : {parts.qweight, parts.qzeros, parts.scales, parts.g_idx})
        if (part != nullptr) info.stored_bytes += part->entry.size_bytes;
    // A single group per row can be written as many groups with one scale.
    const bool is_ours = layout.in_order && parts.scales->entry.dtype == TensorDtype::f16 &&
                         layout.num_in % 32 == 0;
    if (is_ours)
        info.int4_group = layout.num_groups == 1 ? 1u << 20
                                                 : static_cast<std::uint32_t>(layout.group_size);
    return Reader(
        std::make_unique<PackedInt4Reader>(std::move(files), parts, layout, std::move(info)));
}

}  // namespace moex
