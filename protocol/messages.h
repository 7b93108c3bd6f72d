// One struct per message, with its encoder (to a whole frame)
// and decoder (from a whole frame whose header was read).
// Decoders check every size before they allocate, refuse what
// PROTOCOL.md calls an error, and borrow nothing unless said.
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

// What was agreed in HELLO / WELCOME and bounds every tensor message after it.
struct WireLimits {
    std::uint32_t hidden_size = 0;
    std::uint32_t num_layers = 0;
    std::uint32_t num_experts = 0;
    std::uint32_t num_tokens_max = 512;  // rows per message
    std::uint32_t num_pairs_max = 4096;  // (expert, row) pairs per group
};
// No larger frame is legal under `limits`: the reader's message limit.
std::uint64_t tensor_frame_bytes_max(const WireLimits& limits);

// ---- the five published messages

// DISPATCH: x [num_tokens, hidden_size] and a gate per token for one expert.
struct Dispatch {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Dtype dtype = Dtype::f16;
    std::vector<float> x;     // [num_tokens, hidden_size]
    std::vector<half> gates;  // [num_tokens]
};
Bytes encode_dispatch(const Dispatch& message, std::uint32_t hidden_size, bool lz4);
Result<Dispatch> decode_dispatch(ByteView frame, const WireLimits& limits);

// RESULT: y [num_tokens, hidden_size], gates already applied; the rest echoes the DISPATCH.
struct ExpertResult {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Dtype dtype = Dtype::f16;
    std::vector<float> y;
};
Bytes encode_result(const ExpertResult& message, std::uint32_t hidden_size, bool lz4);
// A non-finite y is ErrorCode::non_finite.
Result<ExpertResult> decode_result(ByteView frame, const WireLimits& limits);

// CANCEL: sequence_id is the attempt to drop. HEARTBEAT: echoed with
// the same id; a worker's first one may carry capabilities JSON.
Bytes encode_cancel(std::uint32_t sequence_id);
Status decode_cancel(ByteView frame);  // refuses a payload
Bytes encode_heartbeat(std::uint32_t sequence_id, std::string_view json = {});
Status decode_heartbeat(ByteView frame);  // any but a peer's first: refuses a payload

// WEIGHT_SYNC: the blob to hold for (layer, expert).
struct WeightSync {
    std::uint32_t sequence_id = 0;
    std::uint16_t layer = 0, expert = 0;
    Sha256 blob{};
};
Bytes encode_weight_sync(const WeightSync& message, std::uint32_t hidden_size);
Result<WeightSync> decode_weight_sync(ByteView frame, const WireLimits& limits);

// ---- groups: all of one worker's experts in one round

struct GroupExpert {
    std::uint16_t expert = 0;
    std::uint16_t num_rows = 0;
    bool operator==(const GroupExpert&) const = default;
};
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
struct GroupDispatch {
    std::uint32_t sequence_id = 0;
    GroupShape shape;
    std::vector<GroupExpert> experts;  // ascending by expert
    std::vector<std::uint16_t> rows;   // [num_pairs] index into x; ascending within an expert
    std::vector<half> gates;           // [num_pairs]
    std::vector<float> x;              // [num_tokens, hidden_dim]
    bool x_int8 = false;               // x travels as int8, and the answer as shape.dtype
};
inline constexpr const char* x_int8_cap = "x_int8";  // of HELLO: the worker takes such groups
inline Dtype x_dtype_of(const GroupShape& shape, bool x_int8) {
    return x_int8 ? Dtype::int8 : shape.dtype;
}
Bytes encode_group_dispatch(const GroupDispatch& message, bool lz4);
Result<GroupDispatch> decode_group_dispatch(ByteView frame, const WireLimits& limits);

// The same without touching x: for the worker's fast path, which uploads the wire bytes as they
// are. LZ4 payloads are decompressed into `scratch`; x_bytes borrows the frame or `scratch`.
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
// Reuses the vectors of `out`.
Status decode_group_dispatch_into(GroupDispatchView& out, ByteView frame, const WireLimits& limits,
                                  Bytes& scratch);

// What a group took, as its worker says: for people who ask where a round's time went.
struct RoundTimes {
    std::uint32_t worker_us = 0;  // from the question's arrival to the answer's leaving
    // By the GPU's own clock, of this group or of one shortly before; 0: not known.
    std::uint32_t gpu_us = 0;
    bool operator==(const RoundTimes&) const = default;
};
inline constexpr const char* times_cap = "times";  // of WELCOME: the hub reads RoundTimes
struct GroupResult {
    std::uint32_t sequence_id = 0;
    GroupShape shape;      // echoes the request (num_experts and num_pairs too)
    std::vector<float> y;  // [num_tokens or num_pairs, hidden_dim]
    std::optional<RoundTimes> times;
};
Bytes encode_group_result(const GroupResult& message, bool lz4);
// The frame of a result whose y is in wire form already (`y_bytes`), without a copy through f32.
Bytes encode_group_result_bytes(std::uint32_t sequence_id, const GroupShape& shape,
                                ByteView y_bytes, const std::optional<RoundTimes>& times = {});
// The same around y that lies where the frame has it: `frame` is group_result_y_offset bytes, y,
// and group_result_times_bytes. The value is the frame, which is shorter when it has no times.
inline constexpr std::size_t group_result_y_offset = 32, group_result_times_bytes = 8;
ByteView frame_group_result(std::span<std::byte> frame, std::uint32_t sequence_id,
                            const GroupShape& shape, const std::optional<RoundTimes>& times);
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits);

// ---- control messages of ours

// How a worker computes an expert. Answers in `exact` are products of INT4 weights with f32 rows:
// they differ from each other by the order of f32 sums alone. `int8` rounds x, and what lies
// between the two halves of an expert, to codes of 8 bits with a scale for each group of inputs;
// what follows is fixed to the last bit, so two such answers to one question are equal.
enum class WorkerArithmetic : std::uint8_t { exact, int8 };
const char* worker_arithmetic_name(WorkerArithmetic arithmetic);  // "exact", "int8"
Result<WorkerArithmetic> parse_worker_arithmetic(std::string_view name);

struct DeviceInfo {       // what a person and the placement want to know of a worker
    std::string backend;  // "webgpu", "vulkan", "cpu"
    std::string vendor, architecture, description;
    bool software = false;           // a rasteriser such as SwiftShader or lavapipe
    std::uint64_t budget_bytes = 0;  // weights it is willing to hold
    std::uint64_t max_buffer_bytes = 0;
    std::uint64_t max_binding_bytes = 0;
    // Of a worker with experts on demand: of these in memory that its device computes from, and
    // where they are kept. Zeros: not told.
    std::uint64_t slot_bytes = 0, store_bytes = 0;
};
// How fast a worker found its GPU to be at its start; zeros: not measured.
struct SpeedProfile {
    // the experts that were timed
    std::uint32_t hidden_size = 0, moe_intermediate_size = 0;
    // GPU time of one such expert with 1, 8 and 64 rows, several in one round
    std::array<std::uint64_t, 3> expert_ns{};
    std::uint64_t read_mb_s = 0;  // of a kernel that only reads
};
struct Hello {
    std::uint16_t version_min = 1, version_max = 1;
    std::string token;
    DeviceInfo device;
    std::vector<Dtype> dtypes{Dtype::f16, Dtype::bf16, Dtype::int8};
    bool lz4 = true;
    std::vector<std::string> caps{"group"};
    std::string kernel_version;
    std::string nickname;  // at most 24 characters, shown as plain text
    std::string client;    // "tab 0.1.0", "native 0.1.0"
    std::string
        worker_key;  // random, chosen by the worker, stable over reconnects: keeps its counters
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;  // of its answers, unless WELCOME asks
    SpeedProfile speed;
};
// Shortens long strings until the frame fits hello_bytes_max.
Bytes encode_hello(const Hello& message);
Result<Hello> decode_hello(ByteView frame);
// The capabilities JSON in the first HEARTBEAT of a worker that
// speaks only the published messages: HELLO's object, every field
// optional. `token`, `caps` and the versions are not taken from it.
Result<Hello> decode_capabilities(ByteView frame);

struct Welcome {
    std::uint16_t version = 1;
    std::uint64_t worker_id = 0;
    std::string model_name;
    std::string package_sha256;  // of manifest.json: changes when the weights do
    WireLimits limits;
    ExpertShape expert_shape;
    std::uint32_t top_k = 0;
    std::uint64_t expert_blob_bytes = 0;
    Dtype dtype = Dtype::f16;  // of activations on this connection
    bool lz4 = false;
    std::uint32_t heartbeat_ms = 2000;
    std::uint32_t queue_depth = 2;
    std::string weights_path = "/weights/";
    std::vector<std::string> caps;               // what else the hub understands: "budget"
    std::optional<WorkerArithmetic> arithmetic;  // of the answers; absent: as HELLO says
    std::string nonce;  // for the signature of IDENTITY; empty: this hub counts for nobody
};
Bytes encode_welcome(const Welcome& message);
Result<Welcome> decode_welcome(ByteView frame);

// ASSIGN: blobs to hold, in the order to fetch them; adds
// to what was assigned before. At most 512 units a frame.
// `num_later`: so many more it will be told to hold once it has loaded some.
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

// READY (worker→hub) and RELEASE (hub→worker): u16 count, then count x {layer u16, expert u16}.
struct Unit {
    std::uint16_t layer = 0, expert = 0;
    auto operator<=>(const Unit&) const = default;
};
// Where a unit lies at its worker: each is quicker than the one before.
enum class UnitTier : std::uint8_t { store, memory, slot };
inline constexpr std::uint32_t num_unit_tiers = 3;
// Of WELCOME: the hub reads the tiers of READY, and SLOTS with its last counter.
inline constexpr const char* tiers_cap = "tiers";
struct Ready {
    std::vector<Unit> units;
    std::vector<UnitTier> tiers;  // as many, or none: not told
};
Bytes encode_ready(const std::vector<Unit>& units, std::span<const UnitTier> tiers = {});
Result<Ready> decode_ready(ByteView frame, const WireLimits& limits);
Bytes encode_release(const std::vector<Unit>& units);
// RELEASE, or READY without tiers
Result<std::vector<Unit>> decode_units(ByteView frame, const WireLimits& limits);

// BUDGET (worker→hub): another limit for weights on a connection that serves, and the units
// that were let go for it: assigned before, from now on neither held nor on their way.
struct Budget {
    std::uint64_t budget_bytes = 0;
    std::vector<Unit> dropped;
};
inline constexpr std::size_t budget_units_max = 1024;  // a frame; more go in further frames
Bytes encode_budget(const Budget& message);
Result<Budget> decode_budget(ByteView frame, const WireLimits& limits);

// PREFETCH: units that may be asked for soon.
inline constexpr const char* on_demand_cap = "on_demand";  // of HELLO: it has a use for them
inline constexpr std::size_t prefetch_hints_max = 4096;    // a frame
struct PrefetchHint {
    Unit unit;
    std::uint16_t deadline_ms = 0;
    std::uint8_t confidence = 0;  // 0..255
};
Bytes encode_prefetch(std::uint32_t sequence_id, const std::vector<PrefetchHint>& hints);
Result<std::vector<PrefetchHint>> decode_prefetch(ByteView frame, const WireLimits& limits);

// POWER (worker→hub): the share of its turns that it wants to be asked for, 10 to 100 %.
inline constexpr std::uint32_t power_percent_min = 10, power_percent_max = 100;
inline constexpr const char* power_cap = "power";  // of WELCOME: the hub asks that much less
Bytes encode_power(std::uint32_t percent);
Result<std::uint32_t> decode_power(ByteView frame);

// SLOTS (worker→hub): what experts on demand found and cost since WELCOME. For people, and for how
// long the hub takes this worker's answers to need; nothing else follows from it.
inline constexpr const char* slots_cap = "slots";  // of WELCOME: the hub reads them
struct SlotFigures {
    std::uint32_t slots = 0;                  // experts that its memory takes
    std::uint64_t asked = 0;                  // experts of groups, counted as a group arrives
    std::uint64_t hits = 0;                   // of these, in memory
    std::uint64_t late = 0;                   // of these, on their way for a hint
    std::uint64_t foreseen = 0, lead_us = 0;  // hits that a hint had named, so long before in all
    std::uint64_t loads = 0, load_us = 0;     // groups that waited for experts, so long in all
    std::uint64_t brought = 0;                // experts brought to memory, for groups and hints
    std::uint64_t wasted = 0;                 // brought for a hint and gone again without use
    std::uint64_t expired = 0;                // hints that were dropped: their deadline had passed
    std::uint64_t misses() const { return asked - hits; }
    bool operator==(const SlotFigures&) const = default;
};
// In the order of the wire.
inline constexpr std::array slot_counters = {
    &SlotFigures::asked,   &SlotFigures::hits,   &SlotFigures::late,    &SlotFigures::foreseen,
    &SlotFigures::lead_us, &SlotFigures::loads,  &SlotFigures::load_us, &SlotFigures::brought,
    &SlotFigures::wasted,  &SlotFigures::expired};
// So many of them came before `tiers_cap`.
inline constexpr std::size_t num_slot_counters_at_first = 9;
inline constexpr std::uint64_t slot_counter_max = 1ull << 53;
Bytes encode_slots(const SlotFigures& message, bool with_expired = true);
Result<SlotFigures> decode_slots(ByteView frame);

Bytes encode_busy(std::uint32_t sequence_id, std::uint32_t retry_ms);
Result<std::uint32_t> decode_busy(ByteView frame);
Bytes encode_drain(std::uint32_t deadline_ms);
Result<std::uint32_t> decode_drain(ByteView frame);

// ERROR: sequence_id names the attempt it fails, or
// 0xffffffff for the connection. JSON of at most 1 KiB.
inline constexpr std::uint32_t no_sequence_id = 0xffffffffu;
struct ErrorMessage {
    std::uint32_t sequence_id = no_sequence_id;
    std::string code, field, found, wanted;
    bool fatal = false;
};
Bytes encode_error(const ErrorMessage& message);  // shortens the strings to fit
Result<ErrorMessage> decode_error(ByteView frame);

// WebSocket close codes we send.
enum class CloseCode : std::uint16_t {
    going_away = 1001,
    protocol_error = 1002,
    text_frame = 1003,
    policy = 1008,
    too_big = 1009
};
// How a connection ends for a frame that could not be decoded.
CloseCode close_code_for(ErrorCode code);

}  // namespace moex
