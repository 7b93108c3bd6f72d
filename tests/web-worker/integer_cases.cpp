#include "tests/web-worker/integer_cases.h"

#include <cstring>

#include "hub/engine/kernels/expert_round_plain.h"
#include "hub/engine/kernels/integer_paths.h"

namespace moex {
namespace {

class Sequence {
  public:
    explicit Sequence(std::uint32_t seed) : state_(seed) {}
    std::uint32_t next() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<std::uint32_t>(state_ >> 32);
    }

  private:
    std::uint64_t state_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Compares the answers of compute_experts() with those of plain loops over one row at a time.
bool expert_agrees(const ExpertShape& shape, std::uint32_t num_rows, ThreadPool& threads) {
    FormulaExpert expert(shape, num_rows);
    const std::size_t hidden = shape.hidden_size;
    auto x = formula_rows(num_rows, shape.hidden_size, 3);
    std::fill_n(x.begin(), hidden, 3.0f);  // row 0: every value gets the largest code

    std::vector<std::uint32_t> row_of_slot;
    for (std::uint32_t slot = 0; slot < num_rows; ++slot)
        row_of_slot.push_back(slot * 7 % num_rows);
    expert.packed.count = num_rows;
    std::vector<float> y(num_rows * hidden), twin(hidden);
    compute_experts({&expert.packed, 1}, {x.data(), hidden, num_rows}, row_of_slot, y.data(),
                    threads);

    bool agrees = true;
    for (std::uint32_t slot = 0; slot < num_rows; ++slot) {
        plain::compute_expert(twin, expert.packed.gate_up, expert.packed.down,
                              std::span(x).subspan(row_of_slot[slot] * hidden, hidden),
                              expert.packed.extras);
        agrees = agrees && same_bits(twin, std::span(y).subspan(slot * hidden, hidden));
    }
    return agrees;
}

}  // namespace

FormulaExpert::FormulaExpert(const ExpertShape& shape, std::uint32_t seed) {
    const ExpertBlobLayout layout = expert_blob_layout(shape);
    blob.resize(layout.size_bytes);
    Sequence sequence(seed);
    for (const BlobSection& codes : {layout.gate_up_codes, layout.down_codes})
        for (std::uint64_t at = 0; at < codes.size_bytes; at += 4) {
            const std::uint32_t word = sequence.next();
            std::memcpy(blob.data() + codes.offset_bytes + at, &word, 4);
        }
    for (const BlobSection& scales : {layout.gate_up_scale_zero, layout.down_scale_zero})
        for (std::uint64_t at = 0; at < scales.size_bytes; at += 4) {
            const std::uint32_t random = sequence.next();
            // MXFP4: four scales of 2^-9 to 2^-6.
            const std::uint32_t word =
                shape.is_mxfp4()
                    ? 0x76767676u + (random & 0x03030303u)
                    : pack_scale_zero(
                          float_to_half(0.004f + 0.00002f * static_cast<float>(random % 100)),
                          float_to_half(7.0f + 0.01f * static_cast<float>(random / 100 % 100)));
            std::memcpy(blob.data() + scales.offset_bytes + at, &word, 4);
        }
    for (const BlobSection& biases : {layout.gate_up_bias, layout.down_bias})
        for (std::uint64_t at = 0; at < biases.size_bytes; at += 4) {
            const float bias = static_cast<float>(static_cast<std::int32_t>(sequence.next())) *
                               0x1p-32f;
            std::memcpy(blob.data() + biases.offset_bytes + at, &bias, 4);
        }

    const auto view = view_expert_blob(blob, shape, shape.codes);
    MOEX_CHECK(view.ok(), "a blob of a formula");
    const ExpertMatrices matrices = expert_matrices(*view);
    exact = {
        0, 0, matrices.gate_up, matrices.down, {view->gate_up_bias, view->down_bias, shape.clamp}};

    auto [up, down] = expert_panels(shape);
    panels = AlignedBuffer(up.size_bytes() + down.size_bytes());
    up.data = panels.data();
    down.data = panels.data() + up.size_bytes();
    pack_int4(panels.data(), up, exact.gate_up, 0, up.num_panels());
    pack_int4(panels.data() + up.size_bytes(), down, exact.down, 0, down.num_panels());
    packed = {0, 0, up, down, exact.extras};
}

std::vector<float> formula_rows(std::uint32_t num_rows, std::uint32_t row_size,
                                std::uint32_t seed) {
    Sequence sequence(seed);
    std::vector<float> x(std::size_t{num_rows} * row_size);
    for (float& value : x)
        value = static_cast<float>(static_cast<std::int32_t>(sequence.next())) * 0x1p-31f;
    return x;
}

std::string integer_disagreements() {
    ThreadPool one_thread(1);
    std::string found;
    for (const ExpertShape& shape :
         {ExpertShape{32, 32, 32}, ExpertShape{96, 64, 32}, ExpertShape{192, 64, 64},
          ExpertShape{384, 256, 128}, ExpertShape{96, 64, 32, true, 0.4f},
          ExpertShape{96, 64, 32, false, 0, ExpertDtype::mxfp4},
          ExpertShape{384, 256, 32, true, 0.4f, ExpertDtype::mxfp4}})
        for (const std::uint32_t num_rows : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 13u, 16u, 33u})
            if (!expert_agrees(shape, num_rows, one_thread))
                found += text(integer_path().name, ": ", shape.hidden_size, " x ",
                              shape.moe_intermediate_size, ", groups of ", shape.group_size, ", ",
                              num_rows, " rows", shape.is_mxfp4() ? ", mxfp4" : "",
                              shape.is_clamped() ? ", clamped\n" : "\n");

    const auto x = formula_rows(1, 128, 9);
    std::int8_t fast[128], twin[128];
    for (const float size : {1.0f, 1e-20f, 1e-35f, 1e30f}) {
        std::vector<float> scaled = x;
        for (float& value : scaled) value *= size;
        const QuantizedGroup a = quantize_group(fast, scaled.data(), 128),
                             b = quantize_group_plain(twin, scaled.data(), 128);
        if (a.scale != b.scale || a.sum != b.sum || std::memcmp(fast, twin, sizeof fast) != 0)
            found += text("codes of rows of size ", size, "\n");
    }
    return found;
}

std::uint64_t answers_digest(ThreadPool& threads) {
    constexpr ExpertShape shape{384, 256, 128};
    constexpr std::uint32_t num_rows = 5, hidden = shape.hidden_size;
    FormulaExpert first(shape, 1), second(shape, 2);
    const std::vector<std::uint32_t> row_of_slot{0, 2, 4, 1, 2, 3, 4};
    first.packed.count = 3;
    second.packed.first = 3;
    second.packed.count = 4;
    const PackedExpert experts[] = {first.packed, second.packed};

    const auto x = formula_rows(num_rows, hidden, 7);
    std::vector<float> y(row_of_slot.size() * hidden), sums(num_rows * hidden);
    compute_experts(experts, {x.data(), hidden, num_rows}, row_of_slot, y.data(), threads);
    for (std::size_t slot = 0; slot < row_of_slot.size(); ++slot)
        integer_add_scaled(std::span(sums).subspan(row_of_slot[slot] * hidden, hidden),
                           std::span(y).subspan(slot * hidden, hidden), 0.3f);

    std::uint64_t digest = 14695981039346656037ull;
    for (const std::byte byte : std::as_bytes(std::span(sums))) {
        digest ^= std::to_integer<std::uint64_t>(byte);
        digest *= 1099511628211ull;
    }
    return digest;
}

}  // namespace moex
