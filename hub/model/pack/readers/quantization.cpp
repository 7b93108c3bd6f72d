#include "hub/model/pack/readers/quantization.h"

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Fields = JsonFields<Json, FileWording>;
constexpr std::uint64_t size_max = 1u << 20;
constexpr const char* readable =
    "; readable: fp8 (e4m3), gptq and awq (4 bits), mxfp4, and checkpoints in bf16, f16 or f32";

Error unsupported(const std::string& message) {
    return {ErrorCode::unsupported, text("config: quantization_config: ", message, readable)};
}

Status require_4_bits(const Json& object, std::string_view method) {
    const Json& bits = member(object, "bits");
    if (whole_number(bits) == 4) return {};
    return unsupported(text(method, " with bits ", json_excerpt(bits), " is not supported"));
}

// Reads group_size, where -1 means one group per row.
Status read_group_size(const Json& object, std::uint64_t& out) {
    const Json& found = member(object, "group_size");
    const auto size = whole_number(found);
    if (!size || *size == 0 || *size < -1 || *size > static_cast<std::int64_t>(size_max))
        return Error{ErrorCode::bad_field,
                     text("config: quantization_config: group_size is ", json_excerpt(found),
                          ", wanted -1 or a number of inputs")};
    out = *size == -1 ? 0 : static_cast<std::uint64_t>(*size);
    return {};
}

Status read_fp8(const Json& object, Quantization& out) {
    std::string format = "e4m3";
    Fields fields(object, {"config: quantization_config"});
    fields.string("fmt", format);
    if (fields.problem()) return *fields.problem();
    if (format != "e4m3" && format != "float8_e4m3fn")
        return unsupported(text("fp8 of fmt \"", format.substr(0, 40), "\" is not supported"));

    const Json& block = member(object, "weight_block_size");
    if (block.is_null()) return {};
    const bool is_pair = block.is_array() && block.size() == 2;
    const auto rows = is_pair ? whole_number(block[0]) : std::nullopt,
               columns = is_pair ? whole_number(block[1]) : std::nullopt;
    if (!rows || !columns || *rows < 1 || *columns < 1 ||
        std::max(*rows, *columns) > static_cast<std::int64_t>(size_max))
        return Error{ErrorCode::bad_field,
                     text("config: quantization_config: weight_block_size is ", json_excerpt(block),
                          ", wanted [rows, columns]")};
    out.block_rows = static_cast<std::uint64_t>(*rows);
    out.block_columns = static_cast<std::uint64_t>(*columns);
    return {};
}

Status read_gptq(const Json& object, Quantization& out) {
    MOEX_TRY(require_4_bits(object, "gptq"));
    MOEX_TRY(read_group_size(object, out.group_size));

    std::string format = "gptq";
    Fields fields(object, {"config: quantization_config"});
    fields.string("checkpoint_format", format);
    if (fields.problem()) return *fields.problem();
    if (format != "gptq" && format != "gptq_v2")
        return unsupported(
            text("gptq of checkpoint_format \"", format.substr(0, 40), "\" is not supported"));

    out.zero_offset = format == "gptq" ? 1 : 0;
    out.has_own_groups = !member(object, "dynamic").is_null();
    return {};
}

Status read_awq(const Json& object, Quantization& out) {
    MOEX_TRY(require_4_bits(object, "awq"));
    MOEX_TRY(read_group_size(object, out.group_size));

    std::string version = "gemm";
    bool has_zeros = true;
    Fields fields(object, {"config: quantization_config"});
    fields.string("version", version);
    fields.boolean("zero_point", has_zeros);
    if (fields.problem()) return *fields.problem();
    if (version != "gemm" && version != "GEMM")
        return unsupported(text("awq of version \"", version.substr(0, 40), "\" is not supported"));
    if (!has_zeros) return unsupported("awq with zero_point false is not supported");
    return {};
}

}  // namespace

Result<Quantization> parse_quantization(const Json& config) {
    Quantization out;
    const Json& object = member(config, "quantization_config");
    if (object.is_null()) return out;

    std::string method = "unnamed";
    Fields fields(object, {"config: quantization_config"});
    fields.string("quant_method", method);
    if (fields.problem()) return *fields.problem();

    if (method == "fp8") {
        out.method = QuantMethod::fp8;
        MOEX_TRY(read_fp8(object, out));
    } else if (method == "gptq") {
        out.method = QuantMethod::gptq;
        MOEX_TRY(read_gptq(object, out));
    } else if (method == "awq") {
        out.method = QuantMethod::awq;
        MOEX_TRY(read_awq(object, out));
    } else if (method == "mxfp4") {
        out.method = QuantMethod::mxfp4;
    } else {
        return unsupported(text("method \"", method.substr(0, 60), "\" is not supported"));
    }
    return out;
}

Result<Quantization> parse_quantize_config(const Json& object) {
    Quantization out{.method = QuantMethod::gptq};
    MOEX_TRY(read_gptq(object, out));
    return out;
}

}  // namespace moex
