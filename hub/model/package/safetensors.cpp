#include "hub/model/package/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "hub/model/strict_json.h"
#include "protocol/bytes.h"

namespace moex {
namespace {

using Json = nlohmann::json;

struct DtypeWord {
    std::string_view word;
    std::uint32_t bytes;
    std::optional<TensorDtype> dtype;
};
const DtypeWord dtype_words[] = {
    {"F32", 4, TensorDtype::f32},
    {"F16", 2, TensorDtype::f16},
    {"BF16", 2, TensorDtype::bf16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, TensorDtype::int8},
    {"U8", 1, TensorDtype::int4},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
};
constexpr std::size_t rank_max = 8;

Result<std::uint64_t> whole_number(const Json& value) {
    if (!value.is_number_unsigned())
        return Error{ErrorCode::bad_file, text(json_excerpt(value), " is not a whole number")};
    return value.get<std::uint64_t>();
}

Result<SafetensorsEntry> parse_entry(const std::string& name, const Json& object,
                                     std::uint64_t data_start, std::uint64_t data_bytes,
                                     std::string_view what) {
    const auto refuse = [&](const std::string& why) {
        return Error{ErrorCode::bad_file, text(what, ": tensor ", name.substr(0, 200), ": ", why)};
    };

    if (!object.is_object() || !object.contains("dtype") || !object.contains("shape") ||
        !object.contains("data_offsets"))
        return refuse(
            text("found ", json_excerpt(object), ", wanted {dtype, shape, data_offsets}"));

    SafetensorsEntry entry{.name = name};
    const Json& dtype = object["dtype"];
    const auto word = std::find_if(std::begin(dtype_words), std::end(dtype_words),
                                   [&](const DtypeWord& w) { return dtype == w.word; });
    if (word == std::end(dtype_words))
        return refuse(text("dtype ", json_excerpt(dtype), " is unknown"));

    entry.dtype = word->dtype;
    entry.dtype_word = word->word;

    const Json& shape = object["shape"];
    if (!shape.is_array() || shape.size() > rank_max)
        return refuse(text("shape is ", json_excerpt(shape), ", wanted at most 8 sizes"));

    std::uint64_t bytes = word->bytes;
    for (const Json& size : shape) {
        const auto number = whole_number(size);
        if (!number.ok()) return refuse(text("shape: ", number.error().message));
        entry.shape.push_back(*number);
        if (__builtin_mul_overflow(bytes, *number, &bytes))
            return refuse(text("shape ", json_excerpt(shape), " is larger than any file"));
    }

    const Json& offsets = object["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2)
        return refuse(text("data_offsets is ", json_excerpt(offsets), ", wanted [begin, end]"));

    const auto begin = whole_number(offsets[0]), end = whole_number(offsets[1]);
    if (!begin.ok() || !end.ok() || *begin > *end)
        return refuse(text("data_offsets is ", json_excerpt(offsets), ", wanted [begin, end]"));
    if (*end > data_bytes)
        return refuse(text("its bytes end at ", *end, ", but the file holds ", data_bytes,
                           " bytes of tensors; truncated?"));
    if (*end - *begin != bytes)
        return refuse(text("data_offsets span ", *end - *begin, " bytes, wanted ", bytes, " for ",
                           word->word, " ", shape_text(entry.shape)));

    entry.offset_bytes = data_start + *begin;
    entry.size_bytes = bytes;
    return entry;
}

}  // namespace

Result<std::string_view> safetensors_header_of(ByteView file, std::string_view what) {
    ByteReader reader(file);
    const std::uint64_t header_bytes = reader.u64();
    if (reader.overrun())
        return Error{
            ErrorCode::bad_file,
            text(what, ": ", file.size(), " bytes, too short for a safetensors file; truncated?")};
    if (header_bytes > safetensors_header_bytes_max)
        return Error{ErrorCode::bad_file,
                     text(what, ": header of ", header_bytes, " bytes, wanted at most ",
                          safetensors_header_bytes_max, "; not a safetensors file?")};
    if (header_bytes > reader.remaining_bytes())
        return Error{ErrorCode::bad_file,
                     text(what, ": header of ", header_bytes, " bytes, but only ",
                          reader.remaining_bytes(), " follow; truncated?")};

    return as_text_view(reader.take(header_bytes));
}

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view header,
                                                               std::uint64_t file_bytes,
                                                               std::string_view what) {
    const std::uint64_t data_start = 8 + header.size();
    if (data_start > file_bytes)
        return Error{ErrorCode::bad_file, text(what, ": header of ", header.size(),
                                               " bytes in a file of ", file_bytes, "; truncated?")};

    MOEX_ASSIGN(object, parse_strict_json(header, text(what, ": header"), {.depth_max = 8}));
    if (!object.is_object())
        return Error{ErrorCode::bad_file, text(what, ": header is ", json_excerpt(object),
                                               ", wanted an object of tensors")};

    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, value] : object.items()) {
        if (name == "__metadata__") {
            const bool of_strings = value.is_object() &&
                                    std::all_of(value.begin(), value.end(),
                                                [](const Json& item) { return item.is_string(); });
            if (!of_strings)
                return Error{ErrorCode::bad_file,
                             text(what, ": __metadata__ is ", json_excerpt(value),
                                  ", wanted an object of strings")};
            continue;
        }

        MOEX_ASSIGN(entry, parse_entry(name, value, data_start, file_bytes - data_start, what));
        entries.push_back(std::move(entry));
    }

    std::sort(entries.begin(), entries.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                  return std::tie(a.offset_bytes, a.size_bytes, a.name) <
                         std::tie(b.offset_bytes, b.size_bytes, b.name);
              });

    std::uint64_t end = data_start;
    std::string_view before = "the header";
    for (const SafetensorsEntry& entry : entries) {
        if (entry.offset_bytes < end)
            return Error{ErrorCode::bad_file,
                         text(what, ": tensors ", before.substr(0, 200), " and ",
                              entry.name.substr(0, 200), " overlap at byte ", entry.offset_bytes)};
        if (entry.offset_bytes > end)
            return Error{ErrorCode::bad_file,
                         text(what, ": ", entry.offset_bytes - end, " bytes before tensor ",
                              entry.name.substr(0, 200), " belong to none")};

        end += entry.size_bytes;
        before = entry.name;
    }

    if (end != file_bytes)
        return Error{ErrorCode::bad_file, text(what, ": ", file_bytes - end,
                                               " bytes after the last tensor belong to none")};
    return entries;
}

Result<TensorViews> safetensors_views(ByteView file, std::string_view what, bool with_codes) {
    MOEX_ASSIGN(header, safetensors_header_of(file, what));
    MOEX_ASSIGN(entries, parse_safetensors_header(header, file.size(), what));
    TensorViews views;
    for (SafetensorsEntry& entry : entries) {
        const std::string shown = entry.name.substr(0, 200);
        const bool is_plain = entry.dtype == TensorDtype::bf16 || entry.dtype == TensorDtype::f32;
        if (!is_plain && !(with_codes && entry.dtype))
            return Error{ErrorCode::bad_file, text(what, ": tensor ", shown, " is ",
                                                   entry.dtype_word, ", wanted BF16 or F32")};
        if (const std::uint32_t element_bytes = is_plain ? tensor_dtype_bytes(*entry.dtype) : 4;
            entry.offset_bytes % element_bytes != 0)
            return Error{ErrorCode::bad_file,
                         text(what, ": tensor ", shown, " begins at byte ", entry.offset_bytes,
                              ", wanted a multiple of ", element_bytes)};

        TensorView view{.name = entry.name,
                        .dtype = *entry.dtype,
                        .shape = std::move(entry.shape),
                        .data = file.subspan(entry.offset_bytes, entry.size_bytes)};
        views.emplace(entry.name, std::move(view));
    }
    return views;
}

std::string make_safetensors_header(std::span<SafetensorsEntry> tensors) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    object["__metadata__"] = {{"format", "pt"}};
    std::uint64_t offset = 0;
    for (SafetensorsEntry& tensor : tensors) {
        tensor.size_bytes = tensor_dtype_bytes(*tensor.dtype);
        for (const std::uint64_t size : tensor.shape) tensor.size_bytes *= size;
        tensor.offset_bytes = offset;
        object[tensor.name] = {{"dtype", tensor_dtype_name(*tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {offset, offset + tensor.size_bytes}}};
        offset += tensor.size_bytes;
    }

    std::string json = object.dump();
    // pads the header, so that tensors begin at a multiple of 8
    json.resize((json.size() + 7) / 8 * 8, ' ');
    std::string header(8, '\0');
    for (int i = 0; i < 8; ++i)
        header[i] = static_cast<char>(std::uint64_t{json.size()} >> (8 * i));
    header += json;
    for (SafetensorsEntry& tensor : tensors) tensor.offset_bytes += header.size();

    return header;
}

}  // namespace moex
