#include "protocol/kv_translate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>

#include "protocol/half.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr float f16_max = 65504.0f, codes_max = 255.0f;

// The blocks of rows that are contiguous in a page: keys, then values, of each head of each layer.
std::size_t num_row_blocks(const KvSource& source) {
    return std::size_t{2} * (source.end_layer - source.first_layer) * source.num_kv_heads;
}

void use_own_bytes(OwnedKvPage& owned) {
    owned.page.rows = owned.rows;
    owned.page.state = owned.state;
}

Status check_sequence(std::span<const KvPage> pages, std::uint32_t page_tokens,
                      const HashOfText& hash_of) {
    if (pages.empty() || page_tokens == 0 || page_tokens > kv_page_tokens_max)
        return Error{ErrorCode::bad_field,
                     text("KV pages: ", pages.size(), " pages to pages of ", page_tokens,
                          " tokens, wanted at least one page and 1 to ", kv_page_tokens_max)};
    if (pages.front().first_position % page_tokens != 0)
        return Error{ErrorCode::bad_field,
                     text("KV pages: the first one begins at ", pages.front().first_position,
                          ", wanted a multiple of ", page_tokens)};

    std::uint64_t next = pages.front().first_position;
    for (const KvPage& page : pages) {
        MOEX_TRY(require_source(page.source, pages.front().source));
        if (page.first_position != next)
            return Error{ErrorCode::bad_order,
                         text("KV pages: one begins at ", page.first_position, ", wanted ", next)};
        if (&page != &pages.back() && page.tokens.size() != page.source.page_tokens)
            return Error{ErrorCode::bad_order,
                         text("KV pages: the one at ", next, " has ", page.tokens.size(),
                              " tokens, wanted ", page.source.page_tokens, " before another page")};
        if (page.before != hash_of(page.first_position))
            return Error{ErrorCode::bad_field,
                         text("KV pages: the one at ", next, " is of another text (before)")};
        next += page.tokens.size();
        const bool is_divided = page.first_position / page_tokens != (next - 1) / page_tokens;
        if (!page.state.empty() && is_divided)
            return Error{ErrorCode::unsupported,
                         text("KV pages: the one at ", page.first_position,
                              " has recurrent state, and cannot be divided")};
    }
    return {};
}

// Adds the tokens at the positions [first, last) of `page` to `owned`, whose rows have room for
// `num_tokens` tokens.
void add_tokens(OwnedKvPage& owned, std::size_t num_tokens, const KvPage& page, std::uint32_t first,
                std::uint32_t last) {
    const std::size_t begin = first - page.first_position, end = last - page.first_position;
    const std::size_t row_bytes = kv_row_bytes(page.source.row_type, page.source.head_dim),
                      at = owned.page.tokens.size();
    for (std::size_t block = 0; block < num_row_blocks(page.source); ++block)
        std::memcpy(owned.rows.data() + (block * num_tokens + at) * row_bytes,
                    page.rows.data() + (block * page.tokens.size() + begin) * row_bytes,
                    (end - begin) * row_bytes);
    const auto ids = std::span(page.tokens).subspan(begin, end - begin);
    owned.page.tokens.insert(owned.page.tokens.end(), ids.begin(), ids.end());
    owned.state.clear();
    if (end == page.tokens.size()) owned.state.assign(page.state.begin(), page.state.end());
}

float load_float(const std::byte* from) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
}
half load_half(const std::byte* from) {
    half value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
}
void store_half(std::byte* to, half value) { std::memcpy(to, &value, sizeof value); }

std::size_t scale_offset(std::size_t head_dim) { return (head_dim + 3) / 4 * 4; }

// A scale for each group of 32 values, then the codes.
void load_integers(std::span<float> values, const std::byte* from) {
    constexpr std::size_t group = 32;
    const std::size_t num_groups = (values.size() + group - 1) / group;
    const std::byte* const codes = from + num_groups * sizeof(float);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = load_float(from + i / group * sizeof(float)) *
                    static_cast<float>(std::to_integer<std::int8_t>(codes[i]));
}

void load_row(std::span<float> values, KvRowType type, const std::byte* from) {
    if (type == KvRowType::int8) return load_integers(values, from);
    const std::byte* const scale_zero = from + scale_offset(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (type == KvRowType::f32) values[i] = load_float(from + 4 * i);
        if (type == KvRowType::f16) values[i] = half_to_float(load_half(from + 2 * i));
        if (type == KvRowType::u8)
            values[i] = half_to_float(load_half(scale_zero + 2)) +
                        half_to_float(load_half(scale_zero)) *
                            static_cast<float>(std::to_integer<unsigned>(from[i]));
    }
}

// The same steps as store_codes() in wgsl/decoder/rope_store.wgsl.
void store_codes(std::byte* to, std::span<const float> values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const half zero_bits = float_to_half(std::clamp(*low, -f16_max, f16_max));
    const float zero = half_to_float(zero_bits);
    const half scale_bits = float_to_half(std::clamp(*high - zero, 0.0f, 2 * f16_max) / codes_max);
    const float scale = half_to_float(scale_bits);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float steps = scale > 0 ? (values[i] - zero) / scale : 0.0f;
        to[i] = static_cast<std::byte>(std::clamp(std::nearbyint(steps), 0.0f, codes_max));
    }
    store_half(to + scale_offset(values.size()), scale_bits);
    store_half(to + scale_offset(values.size()) + 2, zero_bits);
}

// Returns false if a value has no finite form. `to` has only zero bytes before.
bool store_row(std::byte* to, KvRowType type, std::span<const float> values) {
    float limit = 0;
    for (const float value : values)
        limit = std::isfinite(value) ? std::max(limit, std::abs(value)) : INFINITY;
    // f16 rounds a value below 65520 to at most f16_max.
    const bool fits = type == KvRowType::f32 ? std::isfinite(limit) : limit < 65520.0f;
    if (!fits) return false;
    if (type == KvRowType::u8) store_codes(to, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (type == KvRowType::f32) std::memcpy(to + 4 * i, &values[i], sizeof(float));
        if (type == KvRowType::f16) store_half(to + 2 * i, float_to_half(values[i]));
    }
    return true;
}

}  // namespace

Result<std::vector<OwnedKvPage>> resize_kv_pages(std::span<const KvPage> pages,
                                                 std::uint32_t page_tokens,
                                                 const HashOfText& hash_of) {
    MOEX_TRY(check_sequence(pages, page_tokens, hash_of));
    const std::uint32_t begin = pages.front().first_position;
    const auto end = static_cast<std::uint32_t>(pages.back().first_position +
                                                pages.back().tokens.size());
    KvSource source = pages.front().source;
    source.page_tokens = page_tokens;

    std::vector<OwnedKvPage> resized;
    std::size_t next = 0;  // the first of `pages` that the new page needs
    for (std::uint32_t first = begin; first < end; first += std::min(end - first, page_tokens)) {
        const std::uint32_t last = first + std::min(end - first, page_tokens);
        OwnedKvPage& owned = resized.emplace_back();
        owned.page.source = source;
        owned.page.first_position = first;
        owned.page.before = hash_of(first);
        owned.rows.resize(kv_rows_bytes(source, last - first));
        std::set<std::string_view> workers;
        for (; next < pages.size(); ++next) {
            const KvPage& page = pages[next];
            const std::uint32_t page_end = page.first_position +
                                           static_cast<std::uint32_t>(page.tokens.size());
            if (page.first_position >= last) break;
            add_tokens(owned, last - first, page, std::max(first, page.first_position),
                       std::min(last, page_end));
            for (const std::string& worker : page.workers)
                if (workers.insert(worker).second) owned.page.workers.push_back(worker);
            if (page_end > last) break;  // the next page begins in this one
        }
        if (owned.page.workers.size() > kv_page_workers_max)
            return Error{ErrorCode::unsupported, text("KV pages: ", owned.page.workers.size(),
                                                      " workers took part in one "
                                                      "page, wanted at most ",
                                                      kv_page_workers_max)};
    }
    for (OwnedKvPage& owned : resized) use_own_bytes(owned);
    return resized;
}

Result<OwnedKvPage> convert_kv_rows(const KvPage& page, KvRowType row_type) {
    if (row_type == KvRowType::int8)
        return Error{ErrorCode::unsupported, "KV page: row_type int8, wanted f32, f16 or u8"};
    OwnedKvPage owned;
    owned.page = page;
    owned.page.source.row_type = row_type;
    const auto num_tokens = static_cast<std::uint32_t>(page.tokens.size());
    owned.rows.resize(kv_rows_bytes(owned.page.source, num_tokens));
    owned.state.assign(page.state.begin(), page.state.end());

    const std::size_t num_rows = num_row_blocks(page.source) * num_tokens;
    const std::size_t from_bytes = kv_row_bytes(page.source.row_type, page.source.head_dim),
                      to_bytes = kv_row_bytes(row_type, page.source.head_dim);
    std::vector<float> values(page.source.head_dim);
    for (std::size_t row = 0; row < num_rows; ++row) {
        load_row(values, page.source.row_type, page.rows.data() + row * from_bytes);
        if (!store_row(owned.rows.data() + row * to_bytes, row_type, values))
            return Error{ErrorCode::non_finite, text("KV page: a value of row ", row,
                                                     " is not finite, or too large for "
                                                     "the new row type")};
    }
    use_own_bytes(owned);
    return owned;
}

double kv_code_error(double low, double high) {
    constexpr double f16_step = 0x1p-11, f16_least = 0x1p-25, f32_step = 0x1p-22;
    const double zero_error = std::abs(low) * f16_step + f16_least;
    const double range = high - low + zero_error;
    const double range_error = range * f16_step + codes_max * f16_least;
    const double half_code = (range + range_error) / codes_max / 2;
    return half_code + std::max(zero_error, range_error) +
           f32_step * std::max(std::abs(low), std::abs(high));
}

}  // namespace moex
