// Fuzzes all decoders of the protocol. The first byte chooses the decoder; the other bytes are the
// frame. A message that a decoder accepts must have the same meaning after it is encoded and
// decoded again.
#include <cstdlib>

#include "protocol/identity.h"
#include "protocol/messages.h"
#include "protocol/span_layer.h"
#include "protocol/span_messages.h"

namespace moex {
namespace {

WireLimits limits() { return {32, 4, 8, 16, 64}; }

void require(bool condition) {
    if (!condition) std::abort();
}

// Returns the bytes with correct magic, version, type and length in the header, so that the fuzzer
// spends its time on the payload.
Bytes repaired(ByteView bytes, FrameType type) {
    Bytes frame(bytes.begin(), bytes.end());
    const std::size_t header_bytes = has_tensor_header(type) ? tensor_header_bytes
                                                             : frame_header_bytes;
    if (frame.size() < header_bytes) return frame;
    ByteWriter out;
    begin_frame(out, type, 0);
    out.patch_u32(8, static_cast<std::uint32_t>(frame.size() - header_bytes));
    const Bytes header = std::move(out).take();
    std::copy(header.begin(), header.begin() + 12, frame.begin());
    return frame;
}

// Tests a message that carries rows or weights. If it is accepted, it must have the same contents
// after it is encoded and decoded again.
void one_tensor(FrameType type, const Bytes& frame, bool lz4) {
    switch (type) {
        case FrameType::dispatch:
            if (const auto message = decode_dispatch(frame, limits());
                message.ok() && message->dtype != Dtype::int8) {
                const auto again = decode_dispatch(encode_dispatch(*message, 32, lz4), limits());
                require(again.ok() && again->x == message->x && again->gates == message->gates);
            }
            break;
        case FrameType::result:
            if (const auto message = decode_result(frame, limits());
                message.ok() && message->dtype != Dtype::int8) {
                const auto again = decode_result(encode_result(*message, 32, lz4), limits());
                require(again.ok() && again->y == message->y);
            }
            break;
        case FrameType::weight_sync:
            if (const auto message = decode_weight_sync(frame, limits()); message.ok())
                require(encode_weight_sync(*message, 32) == frame);
            break;
        case FrameType::group_dispatch: {
            GroupDispatchView view;
            Bytes scratch;
            const bool viewed = decode_group_dispatch_into(view, frame, limits(), scratch).ok();
            const auto message = decode_group_dispatch(frame, limits());
            require(viewed || !message.ok());
            if (message.ok() && x_dtype_of(message->shape, message->x_int8) != Dtype::int8) {
                const auto again = decode_group_dispatch(encode_group_dispatch(*message, lz4),
                                                         limits());
                require(again.ok() && again->x == message->x && again->rows == message->rows &&
                        again->shape == message->shape);
            }
            break;
        }
        case FrameType::group_result:
            if (const auto message = decode_group_result(frame, limits());
                message.ok() && message->shape.dtype != Dtype::int8) {
                const auto again = decode_group_result(encode_group_result(*message, lz4),
                                                       limits());
                require(again.ok() && again->y == message->y && again->shape == message->shape &&
                        again->times == message->times);
            }
            break;
        case FrameType::hubs:
            if (const auto message = decode_hubs(frame); message.ok())
                require(decode_hubs(encode_hubs(*message)).value() == *message);
            break;
        default: break;
    }
}

void one_control(FrameType type, const Bytes& frame) {
    switch (type) {
        case FrameType::hello:
            if (const auto message = decode_hello(frame); message.ok()) {
                const Bytes encoded = encode_hello(*message);
                require(encoded.size() <= hello_bytes_max && decode_hello(encoded).ok());
            }
            break;
        case FrameType::heartbeat: (void)decode_capabilities(frame); break;
        case FrameType::welcome:
            if (const auto message = decode_welcome(frame); message.ok()) {
                const auto again = decode_welcome(encode_welcome(*message));
                require(again.ok() && again->expert_shape == message->expert_shape &&
                        again->hubs == message->hubs);
            }
            break;
        case FrameType::assign:
            if (const auto message = decode_assign(frame, limits()); message.ok())
                require(decode_assign(encode_assign(message->units, message->num_later), limits())
                            .ok());
            break;
        case FrameType::ready:
            (void)decode_units(frame, limits());
            if (const auto message = decode_ready(frame, limits()); message.ok()) {
                const auto again = decode_ready(encode_ready(message->units, message->tiers),
                                                limits());
                require(again.ok() && again->units == message->units &&
                        again->tiers == message->tiers);
            }
            break;
        case FrameType::release: (void)decode_units(frame, limits()); break;
        case FrameType::budget:
            if (const auto message = decode_budget(frame, limits()); message.ok())
                require(decode_budget(encode_budget(*message), limits()).ok());
            break;
        case FrameType::identity:
            if (const auto message = decode_identity(frame); message.ok())
                require(decode_identity(encode_identity(*message)).ok());
            break;
        case FrameType::power:
            if (const auto percent = decode_power(frame); percent.ok())
                require(decode_power(encode_power(*percent)).value() == *percent);
            break;
        case FrameType::slots:
            if (const auto message = decode_slots(frame); message.ok())
                require(decode_slots(encode_slots(*message)).value() == *message);
            break;
        case FrameType::prefetch:
            if (const auto message = decode_prefetch(frame, limits()); message.ok())
                require(decode_prefetch(encode_prefetch(0, *message), limits()).ok());
            break;
        case FrameType::busy: (void)decode_busy(frame); break;
        case FrameType::drain: (void)decode_drain(frame); break;
        case FrameType::error:
            if (const auto message = decode_error(frame); message.ok())
                require(decode_error(encode_error(*message)).ok());
            break;
        case FrameType::cancel: (void)decode_cancel(frame); break;
        default: break;
    }
}

// Tests a message of spans. An accepted message is encoded to the same bytes, unless its rows are
// int8, whose scales a sender may choose.
void one_span(FrameType type, const Bytes& frame) {
    switch (type) {
        case FrameType::span_assign:
            if (const auto message = decode_span_assign(frame, limits()); message.ok())
                require(decode_span_assign(encode_span_assign(*message), limits())->layers ==
                        message->layers);
            break;
        case FrameType::span_release: (void)decode_span_release(frame); break;
        case FrameType::span_ready:
            if (const auto message = decode_span_ready(frame); message.ok())
                require(decode_span_ready(encode_span_ready(*message)).value() == *message);
            break;
        case FrameType::span_step:
            if (const auto message = decode_span_step(frame, limits());
                message.ok() && message->dtype != Dtype::int8) {
                const auto again = decode_span_step(encode_span_step(*message, 32), limits());
                require(again.ok() && again->x == message->x &&
                        again->sequences == message->sequences);
            }
            break;
        case FrameType::span_answer:
            if (const auto message = decode_span_answer(frame, limits());
                message.ok() && message->dtype != Dtype::int8) {
                const auto again = decode_span_answer(encode_span_answer(*message, 32), limits());
                require(again.ok() && again->x == message->x && again->kv == message->kv);
            }
            break;
        case FrameType::span_kv:
            if (const auto message = decode_span_kv(frame, limits()); message.ok())
                require(decode_span_kv(encode_span_kv(*message), limits())->rows == message->rows);
            break;
        case FrameType::span_state:
            if (const auto message = decode_span_state(frame, limits()); message.ok())
                require(encode_span_state(*message).size() == frame.size());
            break;
        case FrameType::span_end:
            if (const auto message = decode_span_end(frame); message.ok())
                require(encode_span_end(*message).size() == frame.size());
            break;
        default: break;
    }
}

void one(unsigned choice, ByteView bytes) {
    static constexpr FrameType types[] = {
        FrameType::dispatch,       FrameType::result,       FrameType::weight_sync,
        FrameType::group_dispatch, FrameType::group_result, FrameType::hello,
        FrameType::heartbeat,      FrameType::welcome,      FrameType::assign,
        FrameType::ready,          FrameType::prefetch,     FrameType::busy,
        FrameType::drain,          FrameType::error,        FrameType::cancel,
        FrameType::release};
    // If bit 5 of the first byte is set, choose one of the frame types that were added later. The
    // existing corpus thereby keeps its meaning.
    static constexpr FrameType later[] = {FrameType::budget, FrameType::identity, FrameType::power,
                                          FrameType::slots};
    // Bits 4 and 5 together choose a message of spans, or the blob of a layer.
    static constexpr FrameType spans[] = {FrameType::span_assign, FrameType::span_release,
                                          FrameType::span_ready,  FrameType::span_step,
                                          FrameType::span_answer, FrameType::span_kv,
                                          FrameType::span_end};
    const bool of_spans = (choice & 0x30) == 0x30;
    if (of_spans && choice % 8 == 7) {
        const Bytes blob(bytes.begin(), bytes.end());
        if (const auto layer = decode_span_layer(blob); layer.ok())
            require(encode_span_layer(*layer).size() == blob.size());
        return;
    }
    const FrameType type = of_spans                  ? spans[choice % 8]
                           : (choice & 0x2f) == 0x2f ? FrameType::hubs
                           : (choice & 0x2f) == 0x2e ? FrameType::span_state
                           : (choice & 0x20) != 0    ? later[choice % 16 % 4]
                                                     : types[choice % 16];
    const Bytes frame = (choice & 0x80) != 0 ? Bytes(bytes.begin(), bytes.end())
                                             : repaired(bytes, type);
    (void)decode_frame_header(frame);
    (void)decode_tensor_header(frame);
    one_tensor(type, frame, (choice & 0x40) != 0);
    one_control(type, frame);
    one_span(type, frame);
}

}  // namespace
}  // namespace moex

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    moex::one(data[0], moex::ByteView(reinterpret_cast<const std::byte*>(data + 1), size - 1));
    return 0;
}
