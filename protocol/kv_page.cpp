#include "protocol/kv_page.h"

#include <algorithm>
#include <cstring>

#include "protocol/checksum.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t page_magic = 0x764b'784d;  // "MxKv"
constexpr std::uint16_t page_version = 1;
// magic, version, flags, header_bytes, rows_bytes; then the checksum of all bytes after it
constexpr std::size_t checksum_offset = 20, checked_offset = 28, rows_align = 16;

std::uint64_t bits_of(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

double double_of(std::uint64_t bits) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

Sha256 take_hash(ByteReader& in) {
    Sha256 hash{};
    const ByteView bytes = in.take(hash.size());
    if (!bytes.empty()) std::memcpy(hash.data(), bytes.data(), hash.size());
    return hash;
}

// Calls `visit(name, field)` for each field of a KvSource, in the order of the bytes.
template <class Source, class Visit>
void for_each_field(Source& source, Visit visit) {
    visit("model", source.model);
    visit("texts", source.texts);
    visit("arithmetic", source.arithmetic);
    visit("weights", source.weights);
    visit("rounding", source.rounding);
    visit("row_type", source.row_type);
    visit("first_layer", source.first_layer);
    visit("end_layer", source.end_layer);
    visit("num_kv_heads", source.num_kv_heads);
    visit("head_dim", source.head_dim);
    visit("rotary_size", source.rotary_size);
    visit("window", source.window);
    visit("page_tokens", source.page_tokens);
    visit("rope_base", source.rope_base);
    visit("rope_scaling.factor", source.rope_scaling.factor);
    visit("rope_scaling.low_freq_factor", source.rope_scaling.low_freq_factor);
    visit("rope_scaling.high_freq_factor", source.rope_scaling.high_freq_factor);
    visit("norm_epsilon", source.norm_epsilon);
    visit("rope_scaling.original_context_tokens", source.rope_scaling.original_context_tokens);
}

struct FieldWriter {
    ByteWriter& out;
    void operator()(const char*, const Sha256& hash) const { out.raw(hash); }
    void operator()(const char*, std::uint32_t value) const { out.u32(value); }
    void operator()(const char*, double value) const { out.u64(bits_of(value)); }
    template <class Enum>
    void operator()(const char*, Enum value) const {
        out.u8(static_cast<std::uint8_t>(value));
    }
};

struct FieldReader {
    ByteReader& in;
    void operator()(const char*, Sha256& hash) const { hash = take_hash(in); }
    void operator()(const char*, std::uint32_t& value) const { value = in.u32(); }
    void operator()(const char*, double& value) const { value = double_of(in.u64()); }
    template <class Enum>
    void operator()(const char*, Enum& value) const {
        value = static_cast<Enum>(in.u8());
    }
};

std::string words_of(const Sha256& hash) { return to_hex(hash); }
std::string words_of(std::uint32_t value) { return text(value); }
std::string words_of(double value) { return text(value); }
template <class Enum>
std::string words_of(Enum value) {
    return text(static_cast<unsigned>(value));
}

Error bad_field(const char* name, std::uint64_t found, std::uint64_t least, std::uint64_t most) {
    return {ErrorCode::bad_field,
            text("KV page: ", name, " is ", found, ", wanted ", least, " to ", most)};
}

Status check_ranges(const KvPage& page, std::uint64_t num_tokens, std::uint64_t num_workers) {
    const KvSource& source = page.source;
    struct Range {
        const char* name;
        std::uint64_t found, least, most;
    };
    const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
    for (const Range& range : {
             Range{"arithmetic", number(source.arithmetic), 1, 3},
             Range{"weights", number(source.weights), 1, 4},
             Range{"rounding", number(source.rounding), 1, 5},
             Range{"row_type", number(source.row_type), 1, 4},
             Range{"end_layer", source.end_layer, 1, kv_page_layers_max},
             Range{"first_layer", source.first_layer, 0, source.end_layer - std::uint64_t{1}},
             Range{"num_kv_heads", source.num_kv_heads, 1, kv_page_heads_max},
             Range{"head_dim", source.head_dim, 1, kv_page_head_dim_max},
             Range{"rotary_size", source.rotary_size, 0, source.head_dim},
             Range{"page_tokens", source.page_tokens, 1, kv_page_tokens_max},
             Range{"num_tokens", num_tokens, 1, source.page_tokens},
             Range{"first_position", page.first_position, 0, 0xffff'ffff - num_tokens},
             Range{"num_workers", num_workers, 0, kv_page_workers_max},
         })
        if (range.found < range.least || range.found > range.most)
            return bad_field(range.name, range.found, range.least, range.most);
    if (page.first_position % source.page_tokens != 0)
        return Error{ErrorCode::bad_field,
                     text("KV page: first_position is ", page.first_position,
                          ", wanted a multiple of page_tokens (", source.page_tokens, ")")};
    return {};
}

Error cut_short(const char* name) {
    return {ErrorCode::payload_size, text("KV page: the header ends inside ", name)};
}

Status read_header(ByteReader& in, KvPage& page) {
    for_each_field(page.source, FieldReader{in});
    page.before = take_hash(in);
    page.first_position = in.u32();
    const std::uint32_t num_tokens = in.u32(), num_workers = in.u32(), state_bytes = in.u32();
    if (in.overrun()) return cut_short("its fixed fields");
    MOEX_TRY(check_ranges(page, num_tokens, num_workers));

    if (in.remaining_bytes() < std::size_t{4} * num_tokens) return cut_short("the tokens");
    page.tokens.resize(num_tokens);
    for (std::uint32_t& token : page.tokens) token = in.u32();
    for (std::uint32_t i = 0; i < num_workers; ++i) {
        const ByteView name = in.take(in.u8());
        if (in.overrun()) return cut_short("the workers");
        page.workers.emplace_back(as_text_view(name));
    }
    page.state = in.take(state_bytes);
    if (in.overrun()) return cut_short("the state");
    return {};
}

// Returns true if rows of this size are those of a page's part: of all layers, or of a number of
// them.
bool has_part_size(const KvSource& source, KvPart part, std::uint64_t num_tokens,
                   std::uint64_t bytes) {
    const std::uint64_t whole = kv_rows_bytes(source, static_cast<std::uint32_t>(num_tokens));
    if (part == KvPart::whole) return bytes == whole;
    if (part == KvPart::state) return bytes == 0;
    return bytes <= whole && bytes % (whole / (source.end_layer - source.first_layer)) == 0;
}

}  // namespace

std::uint64_t kv_row_bytes(KvRowType type, std::uint32_t head_dim) {
    const auto padded = [](std::uint64_t bytes) { return (bytes + 3) / 4 * 4; };
    const std::uint64_t size = head_dim;
    switch (type) {
        case KvRowType::f32: return size * 4;
        case KvRowType::f16: return padded(size * 2);
        case KvRowType::int8: return (size + 31) / 32 * 4 + padded(size);
        case KvRowType::u8: return padded(size) + 4;
    }
    return 0;
}

std::uint64_t kv_rows_bytes(const KvSource& source, std::uint32_t num_tokens) {
    return std::uint64_t{2} * (source.end_layer - source.first_layer) * source.num_kv_heads *
           num_tokens * kv_row_bytes(source.row_type, source.head_dim);
}

Bytes kv_source_bytes(const KvSource& source) {
    ByteWriter out;
    for_each_field(source, FieldWriter{out});
    return std::move(out).take();
}

Bytes encode_kv_page(const KvPage& page) {
    const auto num_tokens = static_cast<std::uint32_t>(page.tokens.size());
    const Status valid = check_ranges(page, num_tokens, page.workers.size());
    MOEX_CHECK(valid.ok(), valid.ok() ? "" : valid.error().message);
    MOEX_CHECK(has_part_size(page.source, page.part, num_tokens, page.rows.size()),
               text("a KV page of ", num_tokens, " tokens has ", page.rows.size(),
                    " bytes of rows, wanted ", kv_rows_bytes(page.source, num_tokens)));

    ByteWriter out(2048 + sizeof(std::uint32_t) * num_tokens + page.state.size() +
                   page.rows.size());
    out.u32(page_magic);
    out.u16(page_version);
    out.u16(static_cast<std::uint16_t>(page.part));  // flags
    out.u32(0);                                      // header_bytes
    out.u64(page.rows.size());
    out.u64(0);  // checksum
    for_each_field(page.source, FieldWriter{out});
    out.raw(page.before);
    out.u32(page.first_position);
    out.u32(num_tokens);
    out.u32(static_cast<std::uint32_t>(page.workers.size()));
    out.u32(static_cast<std::uint32_t>(page.state.size()));
    for (const std::uint32_t token : page.tokens) out.u32(token);
    for (const std::string& worker : page.workers) {
        const auto bytes = std::min<std::size_t>(worker.size(), kv_page_worker_bytes_max);
        out.u8(static_cast<std::uint8_t>(bytes));
        out.raw(as_byte_view(worker).first(bytes));
    }
    out.raw(page.state);
    out.pad_to(rows_align);
    out.patch_u32(8, static_cast<std::uint32_t>(out.size_bytes()));
    out.raw(page.rows);

    Bytes bytes = std::move(out).take();
    const std::uint64_t checksum = checksum64(ByteView(bytes).subspan(checked_offset));
    for (std::size_t i = 0; i < sizeof checksum; ++i)
        bytes[checksum_offset + i] = static_cast<std::byte>(checksum >> (8 * i));
    return bytes;
}

Result<KvPage> decode_kv_page(ByteView bytes, KvPart part) {
    ByteReader in(bytes);
    const std::uint32_t magic = in.u32();
    const std::uint16_t version = in.u16(), flags = in.u16();
    const std::uint32_t header_bytes = in.u32();
    const std::uint64_t rows_bytes = in.u64(), checksum = in.u64();
    if (in.overrun() || magic != page_magic)
        return Error{ErrorCode::bad_magic, "not a page of keys and values"};
    if (version != page_version)
        return Error{ErrorCode::unsupported_version,
                     text("KV page: version is ", version, ", this build reads ", page_version)};
    if (flags != static_cast<std::uint16_t>(part))
        return Error{ErrorCode::unknown_flags, text("KV page: flags are ", flags, ", wanted ",
                                                    static_cast<std::uint16_t>(part))};
    if (header_bytes < checked_offset || header_bytes > bytes.size() ||
        bytes.size() - header_bytes != rows_bytes)
        return Error{ErrorCode::payload_size,
                     text("KV page: ", bytes.size(), " bytes, the header names ", header_bytes,
                          " and ", rows_bytes, " of rows; cut short?")};
    if (checksum64(bytes.subspan(checked_offset)) != checksum)
        return Error{ErrorCode::bad_file, "KV page: the checksum differs; the page is damaged"};

    KvPage page{.part = part};
    ByteReader header(bytes.first(header_bytes));
    (void)header.take(checked_offset);
    MOEX_TRY(read_header(header, page));

    const ByteView padding = header.take(header.remaining_bytes());
    if (padding.size() >= rows_align || header_bytes % rows_align != 0)
        return Error{ErrorCode::payload_size,
                     text("KV page: header_bytes is ", header_bytes, ", the fields end at ",
                          header_bytes - padding.size())};
    for (const std::byte one : padding)
        if (one != std::byte{0})
            return Error{ErrorCode::bad_field, "KV page: the padding behind the header is not 0"};

    const auto num_tokens = static_cast<std::uint32_t>(page.tokens.size());
    if (!has_part_size(page.source, part, num_tokens, rows_bytes))
        return Error{ErrorCode::payload_size,
                     text("KV page: rows_bytes is ", rows_bytes, ", ", num_tokens, " tokens have ",
                          kv_rows_bytes(page.source, num_tokens))};
    page.rows = bytes.subspan(header_bytes);
    return page;
}

Status require_source(const KvSource& found, const KvSource& wanted) {
    // Compare the fields as bytes, so that two NaNs are equal and 0 differs from -0.
    struct Field {
        const char* name;
        std::string words;
        Bytes bytes;
    };
    const auto fields_of = [](const KvSource& source) {
        std::vector<Field> fields;
        for_each_field(source, [&](const char* name, const auto& value) {
            ByteWriter bytes;
            FieldWriter{bytes}(name, value);
            fields.push_back({name, words_of(value), std::move(bytes).take()});
        });
        return fields;
    };
    const auto a = fields_of(found), b = fields_of(wanted);
    for (std::size_t i = 0; i < a.size(); ++i)
        if (a[i].bytes != b[i].bytes)
            return Error{ErrorCode::bad_field,
                         text("KV page: ", a[i].name, " is ", a[i].words, ", wanted ", b[i].words)};
    return {};
}

}  // namespace moex
