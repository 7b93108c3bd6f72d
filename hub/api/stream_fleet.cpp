#include "hub/api/stream_fleet.h"

#include <algorithm>
#include <bit>

#include "hub/base/random_digits.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint8_t head_version = 1;
constexpr std::size_t hub_digits = 8, own_digits = 32;

bool is_hex(std::string_view text) {
    return std::ranges::all_of(
        text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void put(ByteWriter& out, std::string_view words) {
    out.u32(static_cast<std::uint32_t>(words.size()));
    out.raw(as_byte_view(words));
}
std::string get(ByteReader& in) { return std::string(as_text_view(in.take(in.u32()))); }

}  // namespace

Bytes encode_token(const AnswerToken& token) {
    ByteWriter out(16 + 8 * token.token.top.size());
    out.u32(token.choice);
    out.u32(token.token.id);
    out.u32(std::bit_cast<std::uint32_t>(token.token.logprob));
    for (const TokenLogprob& one : token.token.top) {
        out.u32(one.id);
        out.u32(std::bit_cast<std::uint32_t>(one.logprob));
    }
    return std::move(out).take();
}

Result<AnswerToken> decode_token(ByteView bytes) {
    ByteReader in(bytes);
    AnswerToken token;
    token.choice = in.u32();
    token.token.id = in.u32();
    token.token.logprob = std::bit_cast<float>(in.u32());
    while (!in.overrun() && in.remaining_bytes() > 0) {
        const TokenId id = in.u32();
        token.token.top.push_back({id, std::bit_cast<float>(in.u32())});
    }
    if (in.overrun()) return Error{ErrorCode::bad_file, "a token of a journal is cut short"};
    return token;
}

Bytes encode_head(const StreamHead& head) {
    ByteWriter out(head.body.size() + 512);
    out.u8(head_version);
    for (const std::string* words :
         {&head.package, &head.arithmetic, &head.endpoint, &head.owner, &head.client, &head.body})
        put(out, *words);
    out.u64(head.seed);
    out.u64(static_cast<std::uint64_t>(head.created_s));
    out.u8(head.of_front);
    out.u8(head.is_resumable);
    out.raw(head.prompts);
    return std::move(out).take();
}

Result<StreamHead> decode_head(ByteView bytes) {
    ByteReader in(bytes);
    if (const std::uint8_t version = in.u8(); version != head_version)
        return Error{ErrorCode::unsupported, text("a journal of version ", +version)};
    StreamHead head;
    for (std::string* words :
         {&head.package, &head.arithmetic, &head.endpoint, &head.owner, &head.client, &head.body})
        *words = get(in);
    head.seed = in.u64();
    head.created_s = static_cast<std::int64_t>(in.u64());
    head.of_front = in.u8() != 0;
    head.is_resumable = in.u8() != 0;
    std::ranges::copy(in.take(head.prompts.size()), head.prompts.begin());
    if (in.overrun()) return Error{ErrorCode::bad_file, "the head of a journal is cut short"};
    return head;
}

Sha256 hash_prompts(const std::vector<std::vector<TokenId>>& prompts) {
    ByteWriter out;
    for (const std::vector<TokenId>& prompt : prompts) {
        out.u64(prompt.size());
        for (const TokenId id : prompt) out.u32(id);
    }
    return sha256(std::move(out).take());
}

std::string make_stream_id(std::string_view hub_id, std::string_view asked) {
    if (is_stream_id(asked)) return std::string(asked);
    if (asked.size() == own_digits && is_hex(asked)) return text(hub_id, '-', asked);
    return text(hub_id, '-', random_digits(own_digits));
}

bool is_stream_id(std::string_view id) {
    return id.size() == hub_digits + 1 + own_digits && id[hub_digits] == '-' &&
           is_hex(id.substr(0, hub_digits)) && is_hex(id.substr(hub_digits + 1));
}

std::uint64_t seed_of_stream(std::string_view stream_id) {
    const Sha256 hash = sha256(as_byte_view(stream_id.substr(stream_id.find('-') + 1)));
    // Keep the seed within the range of int64, so that a client can send the seed back.
    return ByteReader(hash).u64() >> 1;
}

std::string call_id_of(std::string_view stream_id, std::size_t choice, std::size_t call) {
    static constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const Sha256 hash = sha256(as_byte_view(text(stream_id, ' ', choice, ' ', call)));
    std::string id(9, ' ');
    for (std::size_t i = 0; i < id.size(); ++i)
        id[i] = letters[std::to_integer<std::size_t>(hash[i]) % letters.size()];
    return id;
}

}  // namespace moex
