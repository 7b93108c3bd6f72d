// HELLO, WELCOME, ASSIGN and ERROR: the control messages whose payload is JSON.
#include <algorithm>
#include <limits>

#include "protocol/json.h"
#include "protocol/messages.h"
#include "protocol/payload.h"

namespace moex {
namespace {

constexpr std::size_t json_bytes_max = unauthenticated_frame_bytes_max - frame_header_bytes;
constexpr std::size_t text_bytes_max = 1024, nonce_bytes_max = 128;
constexpr std::size_t nickname_characters_max = 24;
constexpr std::size_t assigned_units_max = 512;
constexpr std::size_t list_items_max = 32;
constexpr std::uint64_t any_u64 = std::numeric_limits<std::uint64_t>::max();

Bytes json_frame(FrameType type, std::uint32_t sequence_id, const std::string& json) {
    ByteWriter out(frame_header_bytes + json.size());
    begin_frame(out, type, sequence_id);
    out.raw(as_byte_view(json));
    return finish_frame(std::move(out));
}

Result<Json> decode_json_frame(ByteView frame, FrameType type, std::size_t bytes_max) {
    MOEX_TRY(decode_header_of(frame, type));
    return parse_json_object(as_text_view(frame.subspan(frame_header_bytes)), bytes_max,
                             frame_type_name(type));
}

std::size_t count_characters(std::string_view utf8) {
    return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    }));
}

std::string_view clip_characters(std::string_view utf8, std::size_t characters_max) {
    std::size_t at = 0;
    for (std::size_t characters = 0; at < utf8.size(); ++at)
        if ((static_cast<unsigned char>(utf8[at]) & 0xc0u) != 0x80u &&
            ++characters > characters_max)
            break;
    return utf8.substr(0, at);
}

// Converts a string to the form that may be sent. Invalid UTF-8 becomes U+FFFD, then the string is
// clipped. Control characters become spaces, because the receiver refuses them.
std::string wire_text(std::string_view text, std::size_t bytes_max) {
    const Json repaired = Json::parse(dump_json(Json(std::string(clip_utf8(text, bytes_max)))),
                                      nullptr, false);
    const auto* value = repaired.get_ptr<const Json::string_t*>();
    std::string out(value == nullptr ? std::string_view() : clip_utf8(*value, bytes_max));

    for (char& c : out)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    return out;
}

Json hello_json(const Hello& message, std::size_t bytes_max) {
    Json dtypes = Json::array(), caps = Json::array();
    for (const Dtype dtype : message.dtypes) dtypes.push_back(dtype_name(dtype));
    for (const std::string& cap : message.caps) caps.push_back(wire_text(cap, 32));

    const DeviceInfo& device = message.device;
    Json json = Json::object();
    json["versions"] = Json::array({message.version_min, message.version_max});
    json["token"] = wire_text(message.token, 4 * bytes_max);
    json["device"] = {{"backend", wire_text(device.backend, 32)},
                      {"vendor", wire_text(device.vendor, bytes_max)},
                      {"architecture", wire_text(device.architecture, bytes_max)},
                      {"description", wire_text(device.description, bytes_max)},
                      {"software", device.software},
                      {"budget_bytes", device.budget_bytes},
                      {"max_buffer_bytes", device.max_buffer_bytes},
                      {"max_binding_bytes", device.max_binding_bytes}};
    if (device.store_bytes > 0) {
        json["device"]["slot_bytes"] = device.slot_bytes;
        json["device"]["store_bytes"] = device.store_bytes;
    }

    json["dtypes"] = std::move(dtypes);
    json["lz4"] = message.lz4;
    json["caps"] = std::move(caps);
    json["kernel_version"] = wire_text(message.kernel_version, bytes_max);
    json["nickname"] = wire_text(clip_characters(message.nickname, nickname_characters_max),
                                 4 * nickname_characters_max);
    json["client"] = wire_text(message.client, bytes_max);
    json["worker_key"] = wire_text(message.worker_key, bytes_max);
    json["arithmetic"] = worker_arithmetic_name(message.arithmetic);
    if (message.span_bytes > 0)
        json["span"] = {{"weights_bytes", message.span_bytes}, {"kv_bytes", message.span_kv_bytes}};
    const SpeedProfile& speed = message.speed;
    if (speed.read_mb_s > 0)
        json["speed"] = {{"hidden_size", speed.hidden_size},
                         {"moe_intermediate_size", speed.moe_intermediate_size},
                         {"expert_ns", speed.expert_ns},
                         {"read_mb_s", speed.read_mb_s}};
    return json;
}

Status read_device(DeviceInfo& device, const Json& object) {
    MOEX_TRY(read_text(device.backend, object, "backend", 32));
    MOEX_TRY(read_text(device.vendor, object, "vendor", text_bytes_max));
    MOEX_TRY(read_text(device.architecture, object, "architecture", text_bytes_max));
    MOEX_TRY(read_text(device.description, object, "description", text_bytes_max));
    MOEX_TRY(read_flag(device.software, object, "software"));
    MOEX_TRY(read_integer_as(device.budget_bytes, object, "budget_bytes", 0, any_u64));
    MOEX_TRY(read_integer_as(device.max_buffer_bytes, object, "max_buffer_bytes", 0, any_u64));
    MOEX_TRY(read_integer_as(device.slot_bytes, object, "slot_bytes", 0, any_u64));
    MOEX_TRY(read_integer_as(device.store_bytes, object, "store_bytes", 0, any_u64));
    return read_integer_as(device.max_binding_bytes, object, "max_binding_bytes", 0, any_u64);
}

Status read_speed(SpeedProfile& speed, const Json& object) {
    MOEX_TRY(read_integer_as(speed.hidden_size, object, "hidden_size", 0, 0xffff));
    MOEX_TRY(
        read_integer_as(speed.moe_intermediate_size, object, "moe_intermediate_size", 0, 1u << 20));
    MOEX_TRY(read_integer_as(speed.read_mb_s, object, "read_mb_s", 0, any_u64));

    const Json* list = find_member(object, "expert_ns");
    if (list == nullptr) return {};
    if (!list->is_array() || list->size() != speed.expert_ns.size())
        return Error{ErrorCode::bad_field, text("\"expert_ns\" is not a list of ",
                                                speed.expert_ns.size(), " whole numbers")};
    for (std::size_t i = 0; i < list->size(); ++i) {
        const auto* value = (*list)[i].get_ptr<const Json::number_unsigned_t*>();
        if (value == nullptr)
            return Error{ErrorCode::bad_field,
                         "\"expert_ns\" has an item that is not a whole number"};
        speed.expert_ns[i] = *value;
    }
    return {};
}

// Reads the list of strings `object[name]`. The caller skips strings that it does not know.
Status read_list(std::vector<std::string>& out, const Json& object, const char* name) {
    const Json* list = find_member(object, name);

    if (list == nullptr) return {};
    if (!list->is_array() || list->size() > list_items_max)
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" is not a list of at most ", list_items_max, " strings")};

    out.clear();
    for (const Json& item : *list) {
        const auto* value = item.get_ptr<const Json::string_t*>();
        if (value == nullptr || value->size() > 32)
            return Error{ErrorCode::bad_field,
                         text("\"", name, "\" has an item that is not a short string")};
        out.push_back(*value);
    }
    return {};
}

// Reads the field "arithmetic", which must be present.
Result<WorkerArithmetic> read_arithmetic(const Json& json) {
    std::string name;
    MOEX_TRY(read_text(name, json, "arithmetic", 32, Presence::required));
    return parse_worker_arithmetic(name);
}

// Reads the fields that HELLO and a HEARTBEAT with capabilities share.
Status read_capabilities(Hello& out, const Json& json) {
    if (const Json* device = find_member(json, "device")) {
        if (!device->is_object()) return Error{ErrorCode::bad_field, "\"device\" is not an object"};
        MOEX_TRY(read_device(out.device, *device));
    }

    if (find_member(json, "dtypes") != nullptr) {
        std::vector<std::string> names;
        MOEX_TRY(read_list(names, json, "dtypes"));
        out.dtypes.clear();
        for (const std::string& name : names) {
            // Skip unknown dtype names, because a later protocol version may have more dtypes.
            const Result<Dtype> dtype = parse_dtype(name);
            if (dtype.ok() && *dtype != Dtype::int4) out.dtypes.push_back(*dtype);
        }

        if (out.dtypes.empty())
            return Error{ErrorCode::bad_field, "\"dtypes\" names none of f16, bf16, int8"};
    }

    MOEX_TRY(read_flag(out.lz4, json, "lz4"));
    MOEX_TRY(read_text(out.kernel_version, json, "kernel_version", text_bytes_max));
    MOEX_TRY(read_text(out.nickname, json, "nickname", 4 * nickname_characters_max));
    if (count_characters(out.nickname) > nickname_characters_max)
        return Error{ErrorCode::bad_field,
                     text("\"nickname\" has more than ", nickname_characters_max, " characters")};

    if (const Json* speed = find_member(json, "speed")) {
        if (!speed->is_object()) return Error{ErrorCode::bad_field, "\"speed\" is not an object"};
        MOEX_TRY(read_speed(out.speed, *speed));
    }

    if (const Json* span = find_member(json, "span")) {
        if (!span->is_object()) return Error{ErrorCode::bad_field, "\"span\" is not an object"};
        MOEX_TRY(read_integer_as(out.span_bytes, *span, "weights_bytes", 0, any_u64));
        MOEX_TRY(read_integer_as(out.span_kv_bytes, *span, "kv_bytes", 0, any_u64));
    }

    MOEX_TRY(read_text(out.client, json, "client", text_bytes_max));
    if (find_member(json, "arithmetic") != nullptr) {
        MOEX_ASSIGN(arithmetic, read_arithmetic(json));
        out.arithmetic = arithmetic;
    }
    return read_text(out.worker_key, json, "worker_key", text_bytes_max);
}

// Reads the field "clamp_bits" of clamped experts, which have biases too. Without the field the
// experts are plain.
Status read_clamp(ExpertShape& shape, const Json& model) {
    if (find_member(model, "clamp_bits") == nullptr) return {};
    constexpr std::uint32_t least = 1, largest = 0x7f7fffff;  // positive finite numbers
    std::uint32_t bits = 0;
    MOEX_TRY(read_integer_as(bits, model, "clamp_bits", least, largest));
    shape.has_bias = true;
    shape.clamp = __builtin_bit_cast(float, bits);
    return {};
}

// Reads the field "codes". Without the field the experts are INT4.
Status read_codes(ExpertShape& shape, const Json& model) {
    if (find_member(model, "codes") == nullptr) return {};
    std::string name;
    MOEX_TRY(read_text(name, model, "codes", 16));
    const Result<ExpertDtype> codes = parse_expert_dtype(name);
    if (!codes.ok() || !has_codes(*codes))
        return Error{ErrorCode::bad_field, text("\"codes\" is ", name, ", want int4 or mxfp4")};
    shape.codes = *codes;
    if (shape.is_mxfp4() && shape.group_size != mxfp4_block)
        return Error{ErrorCode::bad_field,
                     text("\"group_size\" is ", shape.group_size, ", mxfp4 has ", mxfp4_block)};
    return {};
}

bool is_row_dtype(Dtype dtype) { return dtype != Dtype::int4; }

constexpr std::size_t address_bytes_max = 256;

Json need_json(const HubNeed& need) {
    return {{"units", need.units},
            {"missing", need.missing},
            {"thin", need.thin},
            {"workers", need.workers},
            {"streams", need.streams}};
}

Status read_need(HubNeed& need, const Json& json) {
    const Json* found = find_member(json, "need");
    if (found == nullptr) return {};
    if (!found->is_object()) return Error{ErrorCode::bad_field, "\"need\" is not an object"};
    const std::pair<const char*, std::uint32_t*> counts[] = {{"units", &need.units},
                                                             {"missing", &need.missing},
                                                             {"thin", &need.thin},
                                                             {"workers", &need.workers},
                                                             {"streams", &need.streams}};
    for (const auto& [name, count] : counts)
        MOEX_TRY(read_integer_as(*count, *found, name, 0, UINT32_MAX));
    if (std::uint64_t{need.missing} + need.thin > need.units)
        return Error{ErrorCode::bad_field, text("a hub lacks ", need.missing, " and ", need.thin,
                                                " of ", need.units, " units")};
    return {};
}

Json place_json(const HubPlace& hub) {
    Json json = {{"id", hub.id}, {"address", wire_text(hub.address, address_bytes_max)}};
    if (hub.need != HubNeed{}) json["need"] = need_json(hub.need);
    return json;
}

Result<HubPlace> read_place(const Json& json) {
    HubPlace hub;
    if (!json.is_object()) return Error{ErrorCode::bad_field, "a hub is not an object"};
    MOEX_TRY(read_text(hub.id, json, "id", text_bytes_max, Presence::required));
    MOEX_TRY(read_text(hub.address, json, "address", address_bytes_max, Presence::required));
    if (!is_hub_id(hub.id))
        return Error{ErrorCode::bad_field, "the id of a hub has eight hexadecimal digits"};
    MOEX_TRY(read_need(hub.need, json));
    return hub;
}

Json places_json(const std::vector<HubPlace>& hubs) {
    Json list = Json::array();
    for (std::size_t i = 0; i < std::min(hubs.size(), hub_places_max); ++i)
        list.push_back(place_json(hubs[i]));
    return list;
}

Status read_places(std::vector<HubPlace>& hubs, const Json& json) {
    const Json* list = find_member(json, "hubs");
    if (list == nullptr) return {};
    if (!list->is_array() || list->size() > hub_places_max)
        return Error{ErrorCode::bad_field,
                     text("\"hubs\" is not a list of at most ", hub_places_max)};
    for (const Json& one : *list) {
        MOEX_ASSIGN(hub, read_place(one));
        hubs.push_back(std::move(hub));
    }
    return {};
}

Status read_fleet(Welcome& message, const Json& json) {
    MOEX_TRY(read_text(message.hub, json, "hub", text_bytes_max));
    if (!message.hub.empty() && !is_hub_id(message.hub))
        return Error{ErrorCode::bad_field, "the id of a hub has eight hexadecimal digits"};
    MOEX_TRY(read_need(message.need, json));
    return read_places(message.hubs, json);
}

}  // namespace

bool is_hub_id(std::string_view id) {
    return id.size() == 8 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

const char* worker_arithmetic_name(WorkerArithmetic arithmetic) {
    return arithmetic == WorkerArithmetic::int8 ? "int8" : "exact";
}

Result<WorkerArithmetic> parse_worker_arithmetic(std::string_view name) {
    for (const auto known : {WorkerArithmetic::exact, WorkerArithmetic::int8})
        if (name == worker_arithmetic_name(known)) return known;
    return Error{ErrorCode::bad_field, text("\"arithmetic\" is ", name, ", want exact or int8")};
}

Bytes encode_hello(const Hello& message) {
    std::string json;
    for (std::size_t bytes_max = 256; bytes_max > 0; bytes_max /= 2) {
        json = dump_json(hello_json(message, bytes_max));
        if (frame_header_bytes + json.size() <= hello_bytes_max) break;
    }

    MOEX_CHECK(frame_header_bytes + json.size() <= hello_bytes_max,
               text("HELLO of ", json.size(), " bytes"));
    return json_frame(FrameType::hello, 0, json);
}

Result<Hello> decode_hello(ByteView frame) {
    if (frame.size() > hello_bytes_max)
        return Error{ErrorCode::payload_size,
                     text("HELLO of ", frame.size(), " bytes, at most ", hello_bytes_max)};
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::hello, hello_bytes_max));

    Hello message;
    message.caps.clear();  // without the field the worker has no capabilities
    message.lz4 = false;
    message.dtypes = {Dtype::f16};

    const Json* versions = find_member(json, "versions");
    if (versions == nullptr || !versions->is_array() || versions->size() != 2 ||
        !(*versions)[0].is_number_unsigned() || !(*versions)[1].is_number_unsigned())
        return Error{ErrorCode::bad_field, "\"versions\" is not [min, max]"};

    const std::uint64_t version_min = *(*versions)[0].get_ptr<const Json::number_unsigned_t*>();
    const std::uint64_t version_max = *(*versions)[1].get_ptr<const Json::number_unsigned_t*>();
    if (version_min > version_max || version_max > 0xffff)
        return Error{ErrorCode::bad_field,
                     text("\"versions\" is [", version_min, ", ", version_max, "]")};

    message.version_min = static_cast<std::uint16_t>(version_min);
    message.version_max = static_cast<std::uint16_t>(version_max);
    if (version_min > protocol_version || version_max < protocol_version)
        return Error{ErrorCode::unsupported_version,
                     text("worker speaks versions ", version_min, "..", version_max,
                          ", this side speaks ", protocol_version)};

    MOEX_TRY(read_text(message.token, json, "token", text_bytes_max));
    MOEX_TRY(read_list(message.caps, json, "caps"));
    MOEX_TRY(read_capabilities(message, json));
    return message;
}

Result<Hello> decode_capabilities(ByteView frame) {
    if (frame.size() > hello_bytes_max)
        return Error{ErrorCode::payload_size,
                     text("HEARTBEAT of ", frame.size(), " bytes, at most ", hello_bytes_max)};
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::heartbeat, hello_bytes_max));

    Hello message;
    message.caps.clear();
    message.lz4 = false;
    message.dtypes = {Dtype::f16};

    MOEX_TRY(read_capabilities(message, json));
    return message;
}

Bytes encode_welcome(const Welcome& message) {
    Json json = Json::object();
    json["version"] = message.version;
    json["worker_id"] = message.worker_id;
    json["model"] = {{"name", wire_text(message.model_name, 256)},
                     {"package_sha256", message.package_sha256},
                     {"hidden_size", message.limits.hidden_size},
                     {"num_layers", message.limits.num_layers},
                     {"num_experts", message.limits.num_experts},
                     {"top_k", message.top_k},
                     {"moe_intermediate_size", message.expert_shape.moe_intermediate_size},
                     {"group_size", message.expert_shape.group_size},
                     {"expert_blob_bytes", message.expert_blob_bytes}};
    if (message.expert_shape.is_clamped())
        json["model"]["clamp_bits"] = __builtin_bit_cast(std::uint32_t, message.expert_shape.clamp);
    if (message.expert_shape.is_mxfp4())
        json["model"]["codes"] = expert_dtype_name(message.expert_shape.codes);

    json["limits"] = {{"num_tokens_max", message.limits.num_tokens_max},
                      {"num_pairs_max", message.limits.num_pairs_max}};

    json["dtype"] = dtype_name(message.dtype);
    json["lz4"] = message.lz4;
    json["heartbeat_ms"] = message.heartbeat_ms;
    json["queue_depth"] = message.queue_depth;
    json["weights_path"] = message.weights_path;
    if (!message.caps.empty()) json["caps"] = message.caps;
    if (message.arithmetic) json["arithmetic"] = worker_arithmetic_name(*message.arithmetic);
    if (!message.nonce.empty()) json["nonce"] = wire_text(message.nonce, nonce_bytes_max);
    if (!message.hub.empty()) json["hub"] = message.hub;
    if (message.need != HubNeed{}) json["need"] = need_json(message.need);
    if (!message.hubs.empty()) json["hubs"] = places_json(message.hubs);
    return json_frame(FrameType::welcome, 0, dump_json(json));
}

Result<Welcome> decode_welcome(ByteView frame) {
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::welcome, json_bytes_max));

    constexpr auto required = Presence::required;
    Welcome message;
    MOEX_TRY(read_integer_as(message.version, json, "version", protocol_version, protocol_version,
                             required));
    MOEX_TRY(read_integer_as(message.worker_id, json, "worker_id", 0, any_u64, required));

    const Json* model = find_member(json, "model");
    if (model == nullptr || !model->is_object())
        return Error{ErrorCode::bad_field, "\"model\" is not an object"};

    WireLimits& wire = message.limits;
    ExpertShape& shape = message.expert_shape;

    MOEX_TRY(read_text(message.model_name, *model, "name", text_bytes_max, required));
    MOEX_TRY(read_text(message.package_sha256, *model, "package_sha256", 64, required));
    if (!message.package_sha256.empty()) MOEX_TRY(parse_sha256(message.package_sha256));

    MOEX_TRY(read_integer_as(wire.hidden_size, *model, "hidden_size", 32, 0xffff, required));
    MOEX_TRY(read_integer_as(wire.num_layers, *model, "num_layers", 1, 0x10000, required));
    MOEX_TRY(read_integer_as(wire.num_experts, *model, "num_experts", 1, 0xffff, required));
    MOEX_TRY(read_integer_as(message.top_k, *model, "top_k", 1, wire.num_experts, required));
    MOEX_TRY(read_integer_as(shape.moe_intermediate_size, *model, "moe_intermediate_size", 32,
                             1u << 20, required));
    MOEX_TRY(read_integer_as(shape.group_size, *model, "group_size", 32, 128, required));

    shape.hidden_size = wire.hidden_size;
    const Result<std::uint32_t> group_size = choose_group_size(
        shape.hidden_size, shape.moe_intermediate_size, shape.group_size);
    if (!group_size.ok() || *group_size != shape.group_size)
        return Error{ErrorCode::bad_field,
                     text("\"group_size\" ", shape.group_size, " does not fit ", shape.hidden_size,
                          " and ", shape.moe_intermediate_size)};

    MOEX_TRY(read_clamp(shape, *model));
    MOEX_TRY(read_codes(shape, *model));

    const std::uint64_t blob_bytes = expert_blob_layout(shape).size_bytes;
    MOEX_TRY(read_integer_as(message.expert_blob_bytes, *model, "expert_blob_bytes", blob_bytes,
                             blob_bytes, required));

    const Json* limits = find_member(json, "limits");
    if (limits == nullptr || !limits->is_object())
        return Error{ErrorCode::bad_field, "\"limits\" is not an object"};
    // The limit is 0xffff, because the wire stores row indices as u16.
    MOEX_TRY(read_integer_as(wire.num_tokens_max, *limits, "num_tokens_max", 1, 0xffff, required));
    MOEX_TRY(read_integer_as(wire.num_pairs_max, *limits, "num_pairs_max", 1, 1u << 20, required));

    std::string dtype_text;
    MOEX_TRY(read_text(dtype_text, json, "dtype", 16, required));
    MOEX_ASSIGN(dtype, parse_dtype(dtype_text));
    if (!is_row_dtype(dtype))
        return Error{ErrorCode::bad_field, "\"dtype\" int4 is not for activations"};
    message.dtype = dtype;

    MOEX_TRY(read_flag(message.lz4, json, "lz4"));
    MOEX_TRY(read_integer_as(message.heartbeat_ms, json, "heartbeat_ms", 1, 3'600'000));
    MOEX_TRY(read_integer_as(message.queue_depth, json, "queue_depth", 1, 1024));
    MOEX_TRY(read_text(message.weights_path, json, "weights_path", text_bytes_max));
    MOEX_TRY(read_list(message.caps, json, "caps"));
    MOEX_TRY(read_text(message.nonce, json, "nonce", nonce_bytes_max));
    MOEX_TRY(read_fleet(message, json));
    if (find_member(json, "arithmetic") != nullptr) {
        MOEX_ASSIGN(arithmetic, read_arithmetic(json));
        message.arithmetic = arithmetic;
    }
    return message;
}

Bytes encode_hubs(const HubsChange& message) {
    Json json = {{"hubs", places_json(message.hubs)}};
    if (message.move) json["move"] = true;
    return json_frame(FrameType::hubs, 0, dump_json(json));
}

Result<HubsChange> decode_hubs(ByteView frame) {
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::hubs, json_bytes_max));
    HubsChange message;
    MOEX_TRY(read_places(message.hubs, json));
    MOEX_TRY(read_flag(message.move, json, "move"));
    if (message.move && message.hubs.empty())
        return Error{ErrorCode::bad_field, "a move to no hub"};
    return message;
}

Bytes encode_assign(const std::vector<AssignedUnit>& units, std::uint32_t num_later) {
    MOEX_CHECK(units.size() <= assigned_units_max,
               text("ASSIGN of ", units.size(), " units, at most ", assigned_units_max));

    Json list = Json::array();
    for (const AssignedUnit& unit : units)
        list.push_back(Json::array({unit.layer, unit.expert, to_hex(unit.blob)}));

    Json json = Json::object();
    json["units"] = std::move(list);
    if (num_later > 0) json["later"] = num_later;
    return json_frame(FrameType::assign, 0, dump_json(json));
}

Result<Assign> decode_assign(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::assign, json_bytes_max));

    const Json* list = find_member(json, "units");
    if (list == nullptr || !list->is_array() || list->size() > assigned_units_max)
        return Error{ErrorCode::bad_field,
                     text("\"units\" is not a list of at most ", assigned_units_max)};

    Assign message;
    message.units.reserve(list->size());
    for (const Json& item : *list) {
        if (!item.is_array() || item.size() != 3 || !item[0].is_number_unsigned() ||
            !item[1].is_number_unsigned() || !item[2].is_string())
            return Error{ErrorCode::bad_field,
                         "\"units\" has an item that is not [layer, expert, sha256]"};

        const std::uint64_t layer = *item[0].get_ptr<const Json::number_unsigned_t*>();
        const std::uint64_t expert = *item[1].get_ptr<const Json::number_unsigned_t*>();
        if (layer > 0xffff || expert > 0xffff)
            return Error{ErrorCode::bad_field, text("unit [", layer, ", ", expert, "]")};

        AssignedUnit unit;
        unit.layer = static_cast<std::uint16_t>(layer);
        unit.expert = static_cast<std::uint16_t>(expert);
        MOEX_TRY(check_unit(unit.layer, unit.expert, limits.num_layers, limits.num_experts));
        MOEX_ASSIGN(blob, parse_sha256(*item[2].get_ptr<const Json::string_t*>()));
        unit.blob = blob;
        message.units.push_back(unit);
    }

    MOEX_TRY(read_integer_as(message.num_later, json, "later", 0,
                             std::uint64_t{limits.num_layers} * limits.num_experts));
    return message;
}

Bytes encode_error(const ErrorMessage& message) {
    std::string text;

    for (std::size_t bytes_max = 400; bytes_max > 0; bytes_max /= 2) {
        Json json = Json::object();
        json["code"] = wire_text(message.code, 64);
        json["field"] = wire_text(message.field, std::min<std::size_t>(bytes_max, 64));
        json["found"] = wire_text(message.found, bytes_max);
        json["wanted"] = wire_text(message.wanted, bytes_max);
        json["fatal"] = message.fatal;
        text = dump_json(json);
        if (text.size() <= error_json_bytes_max) break;
    }
    return json_frame(FrameType::error, message.sequence_id, text);
}

Result<ErrorMessage> decode_error(ByteView frame) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::error));
    MOEX_ASSIGN(json, decode_json_frame(frame, FrameType::error, error_json_bytes_max));

    ErrorMessage message;
    message.sequence_id = header.sequence_id;

    MOEX_TRY(read_text(message.code, json, "code", 64, Presence::required));
    MOEX_TRY(read_text(message.field, json, "field", error_json_bytes_max));
    MOEX_TRY(read_text(message.found, json, "found", error_json_bytes_max));
    MOEX_TRY(read_text(message.wanted, json, "wanted", error_json_bytes_max));
    MOEX_TRY(read_flag(message.fatal, json, "fatal"));
    return message;
}

CloseCode close_code_for(ErrorCode code) {
    switch (code) {
        case ErrorCode::unauthorized:
        case ErrorCode::overloaded: return CloseCode::policy;
        case ErrorCode::unavailable:
        case ErrorCode::cancelled: return CloseCode::going_away;
        default: return CloseCode::protocol_error;
    }
}

}  // namespace moex
