// One struct per message, with an encoder (to a whole frame) and a decoder (from a whole frame with
// a header that was already read). Sockets and sessions are in hub and web-worker. Decoders check
// every size before they allocate, and refuse everything that PROTOCOL.md calls an error. The
// decoded message borrows nothing from the frame unless a comment says so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/frame.h"
#include "protocol/sha256.h"

namespace moex {

// The limits that HELLO and WELCOME agreed on. They bound every tensor message that follows.
struct WireLimits {
    std::uint32_t hidden_size = 0;
    std::uint32_t num_layers = 0;
    std::uint32_t num_experts = 0;
    std::uint32_t num_tokens_max = 512;  // rows per message
    std::uint32_t num_pairs_max = 4096;  // (expert, row) pairs per group message
};
// Returns the size of the largest legal frame under `limits`. The receiver sets it as the WebSocket
// message limit.
std::uint64_t tensor_frame_bytes_max(const WireLimits& limits);

// ---- the five published messages: DISPATCH, RESULT, CANCEL, HEARTBEAT, WEIGHT_SYNC

// DISPATCH: input rows x [num_tokens, hidden_size] for one expert, and a gate per token.
struct Dispatch {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Dtype dtype = Dtype::f16;
    std::vector<float> x;     // [num_tokens, hidden_size]
    std::vector<half> gates;  // [num_tokens]
};
Bytes encode_dispatch(const Dispatch& message, std::uint32_t hidden_size, bool lz4);
Result<Dispatch> decode_dispatch(ByteView frame, const WireLimits& limits);

// RESULT: answer rows y [num_tokens, hidden_size], with the gates already applied. The other fields
// echo the DISPATCH.
struct ExpertResult {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Dtype dtype = Dtype::f16;
    std::vector<float> y;
};
Bytes encode_result(const ExpertResult& message, std::uint32_t hidden_size, bool lz4);
// Decodes a RESULT. A value of y that is not finite gives the error non_finite.
Result<ExpertResult> decode_result(ByteView frame, const WireLimits& limits);

// CANCEL: sequence_id names the attempt to drop. HEARTBEAT: the worker echoes the frame with the
// same id. The first HEARTBEAT of a worker may carry the worker's capabilities as JSON.
Bytes encode_cancel(std::uint32_t sequence_id);
Status decode_cancel(ByteView frame);  // refuses a payload
Bytes encode_heartbeat(std::uint32_t sequence_id, std::string_view json = {});
// refuses any payload: not for a worker's first HEARTBEAT
Status decode_heartbeat(ByteView frame);

// WEIGHT_SYNC: sends the blob that the worker must hold for (layer, expert).
struct WeightSync {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Sha256 blob{};
};
Bytes encode_weight_sync(const WeightSync& message, std::uint32_t hidden_size);
Result<WeightSync> decode_weight_sync(ByteView frame, const WireLimits& limits);

// ---- groups: all experts that one worker computes in one round

// One entry of the expert table of a group: the expert with the id `expert` computes `num_rows`
// rows.
struct GroupExpert {
    std::uint16_t expert = 0;
    std::uint16_t num_rows = 0;
    bool operator==(const GroupExpert&) const = default;
};
// The group header: all fields that determine the sizes of the tables and of the rows.
struct GroupShape {
    std::uint16_t layer = 0;
    std::uint32_t num_tokens = 0;
    std::uint16_t hidden_dim = 0;
    Dtype dtype = Dtype::f16;
    bool unsummed = false;
    std::uint32_t num_pairs = 0;
    std::uint16_t num_experts = 0;
    bool operator==(const GroupShape&) const = default;
};
// GROUP_DISPATCH: x and, for each expert, the indices of its rows in x and their gates. Example:
// expert 3 computes rows 0 and 1, expert 9 computes row 1. Then experts = {{3, 2}, {9, 1}}, rows =
// {0, 1, 1}, gates = {0.5, 0.25, 0.75}.
struct GroupDispatch {
    std::uint32_t sequence_id = 0;
    GroupShape shape;
    std::vector<GroupExpert> experts;  // ascending by expert
    std::vector<std::uint16_t> rows;   // [num_pairs] row number in x; ascending within an expert
    std::vector<half> gates;           // [num_pairs]
    std::vector<float> x;              // [num_tokens, hidden_dim]
    bool x_int8 = false;               // x is sent as int8; y still has shape.dtype
};
inline constexpr const char* x_int8_cap = "x_int8";  // in HELLO: worker accepts x as int8
// In HELLO: the worker also computes clamped experts (ExpertShape in protocol/tensor_format.h).
inline constexpr const char* clamped_cap = "clamped";
// In HELLO: the worker also computes experts whose codes are MXFP4.
inline constexpr const char* mxfp4_cap = "mxfp4";
inline Dtype x_dtype_of(const GroupShape& shape, bool x_int8) {
    return x_int8 ? Dtype::int8 : shape.dtype;
}
Bytes encode_group_dispatch(const GroupDispatch& message, bool lz4);
Result<GroupDispatch> decode_group_dispatch(ByteView frame, const WireLimits& limits);

// A GroupDispatch with x in wire form, for the worker's fast path, which uploads the wire bytes
// unchanged. LZ4 payloads are decompressed into `scratch`. x_bytes borrows the frame or `scratch`.
struct GroupDispatchView {
    std::uint32_t sequence_id = 0;
    GroupShape shape;
    std::vector<GroupExpert> experts;
    std::vector<std::uint16_t> rows;
    std::vector<half> gates;
    bool x_int8 = false;
    ByteView x_bytes;  // wire_rows_bytes(x_dtype(), num_tokens, hidden_dim)
    Dtype x_dtype() const { return x_dtype_of(shape, x_int8); }
};
// Decodes a GROUP_DISPATCH into `out`, whose vectors are reused.
Status decode_group_dispatch_into(GroupDispatchView& out, ByteView frame, const WireLimits& limits,
                                  Bytes& scratch);

// Times that a worker reports for a group. They help people to see how the time of a round was
// spent.
struct RoundTimes {
    // microseconds from arrival of the request to departure of the answer
    std::uint32_t worker_us = 0;
    // microseconds by the GPU's own clock, for this group or for another group shortly before; 0:
    // not known
    std::uint32_t gpu_us = 0;
    bool operator==(const RoundTimes&) const = default;
};
// in WELCOME: the hub reads the RoundTimes of a worker
inline constexpr const char* times_cap = "times";
// GROUP_RESULT: the answers of a group with gates applied, one row per token or per (expert, row)
// pair.
struct GroupResult {
    std::uint32_t sequence_id = 0;
    GroupShape shape;      // the request's shape (num_experts and num_pairs too)
    std::vector<float> y;  // [num_tokens or num_pairs, hidden_dim]
    std::optional<RoundTimes> times;
};
Bytes encode_group_result(const GroupResult& message, bool lz4);
// Encodes a GROUP_RESULT with a y that is already in wire form (`y_bytes`), without a conversion
// through f32.
Bytes encode_group_result_bytes(std::uint32_t sequence_id, const GroupShape& shape,
                                ByteView y_bytes, const std::optional<RoundTimes>& times = {});
// Writes the headers of a GROUP_RESULT around a y that is already in `frame`. `frame` has
// group_result_y_offset bytes, then y, then group_result_times_bytes. Returns the finished frame,
// which is shorter if it has no times.
inline constexpr std::size_t group_result_y_offset = 32, group_result_times_bytes = 8;
ByteView frame_group_result(std::span<std::byte> frame, std::uint32_t sequence_id,
                            const GroupShape& shape, const std::optional<RoundTimes>& times);
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits);

// ---- control messages that this project adds

// How a worker computes an expert.
// - `exact` multiplies INT4 weights with f32 rows. Two answers differ only by the order of f32
//   sums.
// - `int8` rounds x, and the values between the two halves of an expert, to codes of 8 bits with a
//   scale for each group of inputs. All further steps are fixed to the last bit, so two answers to
//   the same request are equal.
enum class WorkerArithmetic : std::uint8_t { exact, int8 };
const char* worker_arithmetic_name(WorkerArithmetic arithmetic);  // "exact", "int8"
Result<WorkerArithmetic> parse_worker_arithmetic(std::string_view name);

struct DeviceInfo {       // a worker's device, shown to people and used by the placement
    std::string backend;  // "webgpu", "vulkan", "cpu"
    std::string vendor, architecture, description;
    bool software = false;           // software rasteriser such as SwiftShader or lavapipe
    std::uint64_t budget_bytes = 0;  // limit for the weights that the worker holds
    std::uint64_t max_buffer_bytes = 0;
    std::uint64_t max_binding_bytes = 0;
    // For a worker that loads experts on demand: bytes of the slots from which the device computes,
    // and bytes of the store that keeps all its experts. Zeros: not reported.
    std::uint64_t slot_bytes = 0, store_bytes = 0;
};
// Speed of the worker's GPU as the worker measured it at its start. Zeros: not measured.
struct SpeedProfile {
    // sizes of the experts that were timed
    std::uint32_t hidden_size = 0, moe_intermediate_size = 0;
    // GPU time in ns of one expert of these sizes with 1, 8 and 64 rows, measured with several
    // experts in one round
    std::array<std::uint64_t, 3> expert_ns{};
    std::uint64_t read_mb_s = 0;  // throughput in MB/s of a kernel that only reads memory
};
// HELLO: the first frame that a worker sends, with its device and its capabilities.
struct Hello {
    std::uint16_t version_min = 1, version_max = 1;
    std::string token;
    DeviceInfo device;
    std::vector<Dtype> dtypes{Dtype::f16, Dtype::bf16, Dtype::int8};
    bool lz4 = true;
    std::vector<std::string> caps{"group"};
    std::string kernel_version;
    std::string nickname;    // name shown to people as plain text, at most 24 characters
    std::string client;      // program and version: "tab 0.1.0", "native 0.1.0"
    std::string worker_key;  // random; kept over reconnects, so the hub finds the worker's counters
    // how the worker computes; WELCOME may override it
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    SpeedProfile speed;
    // For a worker that can hold spans (protocol/span_messages.h): bytes of its budget that it
    // would use for the weights of a span, and for the span's keys and values.
    std::uint64_t span_bytes = 0, span_kv_bytes = 0;
};
// Encodes a HELLO. Shortens long strings until the frame fits hello_bytes_max.
Bytes encode_hello(const Hello& message);
Result<Hello> decode_hello(ByteView frame);
// Decodes the capabilities JSON in the first HEARTBEAT of a worker that speaks only the published
// messages. The JSON is the object of HELLO, but every field is optional. `token`, `caps` and the
// versions are not read.
Result<Hello> decode_capabilities(ByteView frame);

// How much a hub of a fleet needs workers: what its workers hold, and its load.
struct HubNeed {
    std::uint32_t units = 0;    // (layer, expert) units that workers shall hold; 0: not known
    std::uint32_t missing = 0;  // units that no worker has ready
    std::uint32_t thin = 0;     // other units, with fewer copies than the hub wants
    std::uint32_t workers = 0;
    std::uint32_t streams = 0;  // answers that run
    // The share of copies that the hub lacks, 0 to 1. A missing unit counts as two copies:
    // {units 10, missing 2, thin 4} is 0.4. Returns 0 if nothing is known.
    double lack() const { return units == 0 ? 0 : (2.0 * missing + thin) / (2.0 * units); }
    friend bool operator==(const HubNeed&, const HubNeed&) = default;
};
// A hub lacks clearly more than another one if their lacks differ by this share. It is the
// hysteresis of all moves of workers: a move never makes the hub that the worker leaves lack more
// than the one that it joins.
inline constexpr double clearly_more = 0.25;

// A hub of a fleet, as its workers reach it.
struct HubPlace {
    std::string id;       // eight hexadecimal digits
    std::string address;  // of its pages, without a path at its end: https://hub.example
    HubNeed need{};
    friend bool operator==(const HubPlace&, const HubPlace&) = default;
};
inline constexpr std::size_t hub_places_max = 64;
bool is_hub_id(std::string_view id);

// WELCOME: the hub's answer to HELLO, with the model and the agreed limits.
struct Welcome {
    std::uint16_t version = 1;
    std::uint64_t worker_id = 0;
    std::string model_name;
    std::string package_sha256;  // hash of manifest.json, which differs if any weight differs
    WireLimits limits;
    ExpertShape expert_shape;
    std::uint32_t top_k = 0;
    std::uint64_t expert_blob_bytes = 0;
    Dtype dtype = Dtype::f16;  // dtype of x and y on this connection
    bool lz4 = false;
    std::uint32_t heartbeat_ms = 2000;
    std::uint32_t queue_depth = 2;
    std::string weights_path = "/weights/";
    std::vector<std::string> caps;               // optional features of the hub, e.g. "budget"
    std::optional<WorkerArithmetic> arithmetic;  // how to compute; nullopt: as in HELLO
    std::string nonce;  // to be signed in IDENTITY; empty: the hub keeps no identities
    std::string hub;    // id of the hub; empty: it is in no fleet
    HubNeed need;       // of this hub
    // Other hubs of this model that live, the one that needs workers most first.
    std::vector<HubPlace> hubs;
};
Bytes encode_welcome(const Welcome& message);
Result<Welcome> decode_welcome(ByteView frame);

// ASSIGN: blobs that the worker must hold in addition to earlier assignments, in the order in which
// to fetch them. A frame has at most 512 units. `num_later` is the number of further units that the
// hub will assign once some of the units in this frame are loaded.
struct AssignedUnit {
    std::uint16_t layer = 0, expert = 0;
    Sha256 blob{};
};
struct Assign {
    std::vector<AssignedUnit> units;
    std::uint32_t num_later = 0;
};
Bytes encode_assign(const std::vector<AssignedUnit>& units, std::uint32_t num_later = 0);
Result<Assign> decode_assign(ByteView frame, const WireLimits& limits);

// READY (worker→hub) lists loaded units, RELEASE (hub→worker) lists units to drop. Both have the
// form u16 count, then count x {layer u16, expert u16}.
struct Unit {
    std::uint16_t layer = 0, expert = 0;
    auto operator<=>(const Unit&) const = default;
};
// The tier of storage in which a worker keeps a unit. Each tier is faster than the tier before it.
enum class UnitTier : std::uint8_t { store, memory, slot };
inline constexpr std::uint32_t num_unit_tiers = 3;
// Capability in WELCOME: the hub reads the tiers of READY, and the last counter of SLOTS.
inline constexpr const char* tiers_cap = "tiers";
struct Ready {
    std::vector<Unit> units;
    std::vector<UnitTier> tiers;  // one for each unit; empty: not reported
};
Bytes encode_ready(const std::vector<Unit>& units, std::span<const UnitTier> tiers = {});
Result<Ready> decode_ready(ByteView frame, const WireLimits& limits);
Bytes encode_release(const std::vector<Unit>& units);
// Decodes a RELEASE, or a READY without tiers.
Result<std::vector<Unit>> decode_units(ByteView frame, const WireLimits& limits);

// BUDGET (worker→hub): a new limit for weights on a connection that already serves, and the units
// that the worker dropped because of the limit. These units were assigned before. From now on the
// worker neither holds nor fetches them.
struct Budget {
    std::uint64_t budget_bytes = 0;
    std::vector<Unit> dropped;
};
// limit per frame; more units need further frames
inline constexpr std::size_t budget_units_max = 1024;
Bytes encode_budget(const Budget& message);
Result<Budget> decode_budget(ByteView frame, const WireLimits& limits);

// PREFETCH: hints that name units which the hub expects to request soon.
inline constexpr const char* on_demand_cap = "on_demand";  // in HELLO: worker uses PREFETCH
inline constexpr std::size_t prefetch_hints_max = 4096;    // per frame
struct PrefetchHint {
    Unit unit;
    std::uint16_t deadline_ms = 0;
    std::uint8_t confidence = 0;  // 0..255
};
Bytes encode_prefetch(std::uint32_t sequence_id, const std::vector<PrefetchHint>& hints);
Result<std::vector<PrefetchHint>> decode_prefetch(ByteView frame, const WireLimits& limits);

// POWER (worker→hub): how often the hub may prefer this worker to other holders of an expert, 10 to
// 100 % of the time.
inline constexpr std::uint32_t power_percent_min = 10, power_percent_max = 100;
inline constexpr const char* power_cap = "power";  // in WELCOME: the hub obeys the worker's POWER
Bytes encode_power(std::uint32_t percent);
Result<std::uint32_t> decode_power(ByteView frame);

// HUBS (hub→worker): the other hubs that live, as in WELCOME, since they, or what they need, have
// changed. With `move`, the first one lacks workers, and this worker is asked to join it.
struct HubsChange {
    std::vector<HubPlace> hubs;
    bool move = false;
    friend bool operator==(const HubsChange&, const HubsChange&) = default;
};
inline constexpr const char* hubs_cap = "hubs";  // in HELLO: the worker reads HUBS
Bytes encode_hubs(const HubsChange& message);
Result<HubsChange> decode_hubs(ByteView frame);

// SLOTS (worker→hub): hits, misses and load times of experts that were loaded on demand, since
// WELCOME. The hub shows these figures to people and predicts this worker's answer times from them.
// It uses them for nothing else.
inline constexpr const char* slots_cap = "slots";  // in WELCOME: the hub reads a worker's SLOTS
struct SlotFigures {
    std::uint32_t slots = 0;                  // number of experts that fit into the worker's memory
    std::uint64_t asked = 0;                  // experts that arriving groups requested
    std::uint64_t hits = 0;                   // requested experts that were in memory already
    std::uint64_t late = 0;                   // requested experts that a hint was still loading
    std::uint64_t foreseen = 0, lead_us = 0;  // hits that a hint had named; sum of hint lead times
    std::uint64_t loads = 0, load_us = 0;     // groups that waited for loads; sum of their waits
    std::uint64_t brought = 0;  // experts loaded into memory, for groups and for hints
    std::uint64_t wasted = 0;   // experts loaded for a hint and evicted without use
    std::uint64_t expired = 0;  // hints that were dropped because their deadline passed
    std::uint64_t misses() const { return asked - hits; }
    bool operator==(const SlotFigures&) const = default;
};
// The counters of SLOTS in their order on the wire.
inline constexpr std::array slot_counters = {
    &SlotFigures::asked,   &SlotFigures::hits,   &SlotFigures::late,    &SlotFigures::foreseen,
    &SlotFigures::lead_us, &SlotFigures::loads,  &SlotFigures::load_us, &SlotFigures::brought,
    &SlotFigures::wasted,  &SlotFigures::expired};
// Number of counters in a SLOTS frame that is sent to a hub without the capability `tiers_cap`.
inline constexpr std::size_t num_slot_counters_at_first = 9;
inline constexpr std::uint64_t slot_counter_max = 1ull << 53;
Bytes encode_slots(const SlotFigures& message, bool with_expired = true);
Result<SlotFigures> decode_slots(ByteView frame);

// BUSY (worker→hub): the worker rejects an attempt, and it stays busy for the next `retry_ms`
// milliseconds.
Bytes encode_busy(std::uint32_t sequence_id, std::uint32_t retry_ms);
Result<std::uint32_t> decode_busy(ByteView frame);
// DRAIN (both directions): the sender closes the connection within `deadline_ms` milliseconds.
Bytes encode_drain(std::uint32_t deadline_ms);
Result<std::uint32_t> decode_drain(ByteView frame);

// ERROR: sequence_id names the attempt that failed, or is 0xffffffff if the error concerns the
// whole connection. The payload is JSON of at most 1 KiB.
inline constexpr std::uint32_t no_sequence_id = 0xffffffffu;
struct ErrorMessage {
    std::uint32_t sequence_id = no_sequence_id;
    std::string code, field, found, wanted;
    bool fatal = false;
};
// shortens the message's strings until the frame fits
Bytes encode_error(const ErrorMessage& message);
Result<ErrorMessage> decode_error(ByteView frame);

// WebSocket close codes that hub and worker send.
enum class CloseCode : std::uint16_t {
    going_away = 1001,
    protocol_error = 1002,
    text_frame = 1003,
    policy = 1008,
    too_big = 1009
};
// Returns the WebSocket close code for a connection on which a frame could not be decoded. `code`
// is the error of the decoder.
CloseCode close_code_for(ErrorCode code);

}  // namespace moex
