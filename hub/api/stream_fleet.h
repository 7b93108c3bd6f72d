// The other hubs of a fleet, as the API sees them: they read the journal of a stream, and go on
// with it when its hub is gone. The API writes the head of a stream and its tokens as bytes, and
// leaves the store, the encryption and the connections to hub/net/fleet.
//
// A text depends on the package, the prompt, the options, the seed and the arithmetic alone, since
// the sampler's noise depends on seed, choice, position and token. So the journal needs no state of
// samplers and masks: the hub that goes on reads the request again, with the same seed, and takes
// the tokens so far as the begin of the answer. Each of them passes once more through the job,
// which makes the same events with the same numbers, of which the client gets those that it lacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/http.h"
#include "hub/base/sha256.h"
#include "hub/engine/scores.h"
#include "protocol/result.h"

namespace moex {

// A token of the answer, in the order in which the tokens of all choices were drawn.
struct AnswerToken {
    std::uint32_t choice = 0;
    SampledToken token;
};
Bytes encode_token(const AnswerToken& token);
Result<AnswerToken> decode_token(ByteView bytes);

// What the journal of a stream begins with.
struct StreamHead {
    std::string package;        // SHA-256 of the manifest
    std::string arithmetic;     // ApiOptions::arithmetic
    std::string endpoint;       // name of the CompletionEndpoint
    std::string owner, client;  // HttpRequest::owner, client
    std::string body;           // of the request
    std::uint64_t seed = 0;
    std::int64_t created_s = 0;
    bool of_front = false, is_resumable = false;
    Sha256 prompts{};  // hash of the prompts' token ids
};
Bytes encode_head(const StreamHead& head);
Result<StreamHead> decode_head(ByteView bytes);
Sha256 hash_prompts(const std::vector<std::vector<TokenId>>& prompts);

// The beginning of an answer of a hub in a fleet.
struct StreamPlan {
    // Names the hub that began the answer: "0a1b2c3d-" and 32 random hexadecimal digits. Empty: the
    // hub is in no fleet.
    std::string id;
    std::optional<std::uint64_t> seed;  // empty: random
    std::int64_t created_s = 0;         // 0: now
    std::uint64_t last_event = 0;       // the client has the events up to this number
    bool is_taken = false;              // another hub began the answer
    bool same_arithmetic = true;        // as that of the hub that began it
    std::optional<Sha256> prompts;      // the hash that the prompts must have
    std::vector<AnswerToken> tokens;    // the answer so far
};
// Returns the id of an answer that begins at `hub_id`. `asked` is the id that a front asks for: 32
// hexadecimal digits, or a whole id; other texts are ignored.
std::string make_stream_id(std::string_view hub_id, std::string_view asked);
bool is_stream_id(std::string_view id);
// Returns the seed of a request that names none, so that the same id gives the same text again.
std::uint64_t seed_of_stream(std::string_view stream_id);
std::string call_id_of(std::string_view stream_id, std::size_t choice, std::size_t call);

class StreamFleet {
  public:
    virtual ~StreamFleet() = default;
    virtual const std::string& hub_id() const = 0;
    // The journal of a stream of this hub; these functions do not wait.
    virtual void begin(const std::string& stream_id, Bytes head) = 0;
    virtual void add(const std::string& stream_id, Bytes token) = 0;
    virtual void end(const std::string& stream_id) = 0;

    struct Found {
        bool is_ours = false;         // this hub has taken the stream over
        std::string hub_id, address;  // of the hub that had it
        Bytes head;
        std::vector<Bytes> tokens;
    };
    // Finds the stream of another hub, and takes it over if that hub is gone. Waits for the store.
    // Errors: not_found, cancelled (a third hub was faster), unavailable, bad_file.
    virtual Result<Found> find(const std::string& stream_id, bool owner_is_gone) = 0;
    // Lets any hub go on with a stream that this hub has taken and cannot go on with.
    virtual void leave(const std::string& stream_id) = 0;
    // Answers a request with the answer of the hub at `address`; `on_gone` runs instead if no
    // program listens there any more.
    virtual void pass_on(const std::string& address, const HttpRequest& request,
                         std::shared_ptr<HttpResponder> responder,
                         std::function<void()> on_gone) = 0;
    // Runs `work` on a thread that may wait. Returns false if too much work waits.
    virtual bool run_later(std::function<void()> work) = 0;
};

}  // namespace moex
