#include "hub/model/package/shadow_package.h"

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/json_fields.h"
#include "hub/model/package/manifest.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

constexpr std::uint32_t shadow_format_version = 1;
constexpr std::uint64_t record_bytes_max = 1u << 20;

Result<Sha256> hash_in(const Json& object, std::string_view name, std::string_view what) {
    const Json& value = member(object, name);
    if (value.is_string())
        if (auto hash = parse_sha256(value.get_ref<const std::string&>()); hash.ok()) return hash;
    return Error{ErrorCode::bad_field,
                 text(what, ": ", name, " is ", json_excerpt(value), ", wanted 64 hex digits")};
}

Result<std::uint64_t> number_in(const Json& object, std::string_view name, std::uint64_t most,
                                std::string_view what) {
    const Json& value = member(object, name);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
        value.get<std::uint64_t>() <= most)
        return value.get<std::uint64_t>();
    return Error{ErrorCode::bad_field,
                 text(what, ": ", name, " is ", json_excerpt(value), ", wanted 1 to ", most)};
}

// Checks that the shadow described by `record` was made from the model of `package`.
Status same_model(const ShadowRecord& record, const ModelPackage& package, std::string_view what) {
    const ModelConfig& config = package.config();
    bool same = record.num_experts == config.num_experts &&
                record.shape.hidden_size == config.hidden_size &&
                record.shape.moe_intermediate_size == config.moe_intermediate_size;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        same = same && record.layers.contains(layer) == bool{config.is_moe(layer)};
    same = same && (record.layers.empty() || record.layers.rbegin()->first < config.num_layers);
    if (!same)
        return Error{ErrorCode::invalid_argument,
                     text(what, ": the shadow of ", record.name,
                          ", whose layers or experts are not those of ", package.name())};

    if (record.experts_sha256 != Sha256{} && record.experts_sha256 != experts_hash_of(package))
        return Error{ErrorCode::invalid_argument,
                     text(what, ": the shadow of other experts than those of ", package.name(),
                          "; `moex-hub pack --shadow` makes one of these")};
    return {};
}

}  // namespace

std::string shadow_layer_name(std::uint32_t layer) { return text("layer-", layer, ".experts"); }

Sha256 experts_hash_of(const ModelPackage& package) {
    const ModelConfig& config = package.config();
    Bytes all;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (std::uint32_t expert = 0; config.is_moe(layer) && expert < config.num_experts;
             ++expert) {
            const Sha256& hash = package.blob_hash(layer, expert);
            all.insert(all.end(), hash.begin(), hash.end());
        }
    return sha256(all);
}

std::string shadow_record_to_json(const ShadowRecord& record) {
    OrderedJson layers = OrderedJson::array();
    for (const auto& [layer, file] : record.layers)
        layers.push_back(
            {{"layer", layer}, {"bytes", file.size_bytes}, {"sha256", to_hex(file.sha256)}});
    const OrderedJson object = {{"format", "moex-shadow"},
                                {"format_version", shadow_format_version},
                                {"name", record.name},
                                {"experts_sha256", to_hex(record.experts_sha256)},
                                {"dtype", shadow_dtype_name(record.dtype)},
                                {"group_size", record.shape.group_size},
                                {"hidden_size", record.shape.hidden_size},
                                {"moe_intermediate_size", record.shape.moe_intermediate_size},
                                {"num_experts", record.num_experts},
                                {"layers", layers}};
    return object.dump(1) + "\n";
}

Result<ShadowRecord> parse_shadow_record(std::string_view json_text, std::string_view what) {
    MOEX_ASSIGN(object, parse_strict_json(json_text, what, {.depth_max = 8}));
    const Json& layers = member(object, "layers");
    if (member(object, "format") != "moex-shadow" ||
        member(object, "format_version") != shadow_format_version || !layers.is_array())
        return Error{ErrorCode::unsupported,
                     text(what, ": not a shadow, or of another format_version than ",
                          shadow_format_version)};

    ShadowRecord record;
    const Json &name = member(object, "name"), &dtype = member(object, "dtype");
    if (!name.is_string() || !package_name_ok(name.get_ref<const std::string&>()))
        return Error{ErrorCode::bad_field, text(what, ": name is ", json_excerpt(name))};
    record.name = name.get<std::string>();
    const auto parsed = parse_shadow_dtype(dtype.is_string() ? dtype.get<std::string>() : "");
    if (!parsed.ok())
        return Error{ErrorCode::bad_field, text(what, ": dtype: ", parsed.error().message)};
    record.dtype = *parsed;
    MOEX_ASSIGN(experts_sha256, hash_in(object, "experts_sha256", what));
    record.experts_sha256 = experts_sha256;

    constexpr std::uint64_t size_max = 1u << 20;
    MOEX_ASSIGN(hidden_size, number_in(object, "hidden_size", size_max, what));
    MOEX_ASSIGN(inner_size, number_in(object, "moe_intermediate_size", size_max, what));
    MOEX_ASSIGN(num_experts, number_in(object, "num_experts", 65536, what));
    MOEX_ASSIGN(group_size, number_in(object, "group_size", 128, what));
    if ((group_size != 32 && group_size != 64 && group_size != 128) ||
        hidden_size % group_size != 0 || inner_size % group_size != 0)
        return Error{ErrorCode::bad_field,
                     text(what, ": group_size is ", group_size,
                          ", wanted 32, 64 or 128, a divisor of hidden_size (", hidden_size,
                          ") and moe_intermediate_size (", inner_size, ")")};
    record.num_experts = static_cast<std::uint32_t>(num_experts);
    record.shape = {static_cast<std::uint32_t>(hidden_size), static_cast<std::uint32_t>(inner_size),
                    static_cast<std::uint32_t>(group_size)};

    for (const Json& one : layers) {
        const Json& index = member(one, "layer");
        if (!index.is_number_unsigned() || index.get<std::uint64_t>() > 65536)
            return Error{ErrorCode::bad_field, text(what, ": a layer is ", json_excerpt(one))};
        MOEX_ASSIGN(bytes, number_in(one, "bytes", ~std::uint64_t{0}, what));
        MOEX_ASSIGN(hash, hash_in(one, "sha256", what));
        record.layers[index.get<std::uint32_t>()] = {bytes, hash};
    }
    return record;
}

Result<ShadowPackage> ShadowPackage::open(const std::filesystem::path& directory,
                                          const ModelPackage& package) {
    const std::filesystem::path record_path = directory / "shadow.json";
    MOEX_ASSIGN(record_text, read_text_file(record_path, record_bytes_max));
    MOEX_ASSIGN(record, parse_shadow_record(record_text, record_path.string()));
    MOEX_TRY(same_model(record, package, record_path.string()));

    ShadowPackage shadow;
    shadow.record_ = std::move(record);
    const std::uint64_t wanted = shadow.record_.num_experts * shadow.record_.expert_bytes();
    for (const auto& [layer, file] : shadow.record_.layers) {
        const std::filesystem::path path = directory / shadow_layer_name(layer);
        auto mapped = MappedFile::open(path);
        if (!mapped.ok()) return Error{ErrorCode::bad_file, mapped.error().message};
        if (mapped->bytes().size() != wanted || file.size_bytes != wanted)
            return Error{ErrorCode::bad_file, text(path.string(), ": ", mapped->bytes().size(),
                                                   " bytes, wanted ", wanted)};
        if (sha256(mapped->bytes()) != file.sha256)
            return Error{
                ErrorCode::hash_mismatch,
                text(path.string(), ": does not match shadow.json; pack the shadow again")};
        shadow.layers_.emplace(layer, *std::move(mapped));
    }
    return shadow;
}

ByteView ShadowPackage::expert(std::uint32_t layer, std::uint32_t expert) const {
    const std::uint64_t bytes = record_.expert_bytes();
    return layers_.at(layer).bytes().subspan(expert * bytes, bytes);
}

std::uint64_t ShadowPackage::size_bytes() const {
    return record_.layers.size() * record_.num_experts * record_.expert_bytes();
}

}  // namespace moex
