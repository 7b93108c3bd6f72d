// Runs one request of /v1/prefill: computes the keys and values of a prompt, and sends them as a
// stream of pages (protocol/kv_page.h), so that another device can go on from there.
//   a prompt of 1,000 tokens, pages of 128: 7 full pages, and one of 96 tokens; the device computes
//   the keys and values of the other 8 tokens, as the cache has only full pages of 16
// The prompt is computed in windows, the next one while the pages of the last one are sent. A
// client that reads slowly holds a bounded number of bytes, and none of the engine's sequences.
// Pages of earlier windows are taken from the client's own prefix cache.
//
// Threads: start() and the translation of pages run on threads of the TextPool, pages arrive on the
// engine's thread, a disconnect and the end of a write on the connection's strand.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/api/api_options.h"
#include "hub/api/body_fields.h"
#include "hub/api/http.h"
#include "hub/engine/engine.h"
#include "protocol/kv_page.h"

namespace moex {

// Tokens of a full page of the stream: the size with which a GPU computes.
inline constexpr std::uint32_t handed_page_tokens = 128;

struct PrefillParams {
    std::string model;  // empty: the request names no model
    std::vector<TokenId> prompt;
    std::uint32_t first_page = 0;  // pages before it are not sent
    KvRowType row_type = KvRowType::f16;
};

Checked<PrefillParams> read_prefill(const OrderedJson& body, std::size_t vocab_size);

// Counts the requests for pages that run, for each client and for all clients. Thread-safe.
class PrefillPlaces : public std::enable_shared_from_this<PrefillPlaces> {
  public:
    // Takes a place, which is free again when the result is destroyed. Refuses with 429 if the
    // client has too many, and with 503 if all clients together have too many.
    Checked<std::shared_ptr<void>> take(const std::string& owner);

  private:
    static constexpr std::size_t per_owner_max = 4, places_max = 32;
    std::mutex mutex_;
    std::map<std::string, std::size_t> taken_;  // by owner
    std::size_t num_taken_ = 0;
};

struct PrefillJobInputs {
    Engine* engine = nullptr;
    std::shared_ptr<const ApiObserver> observer;
    PrefillParams params;
    KvSource source;  // of the engine's own pages; 128 is a multiple of its page_tokens
    // Runs a function on a thread of the TextPool; returns false if the pool has no room.
    std::function<bool(std::function<void()>)> run_later;
    std::string client;
    // Bytes of pages of a window, but at least those of one page of the stream. A request holds the
    // pages of two windows.
    std::uint64_t held_bytes_max = 16u << 20;
    std::shared_ptr<void> place;              // of PrefillPlaces
    std::shared_ptr<RequestAccount> account;  // charged for the tokens; null: no account
};

class PrefillJob : public std::enable_shared_from_this<PrefillJob> {
  public:
    PrefillJob(PrefillJobInputs inputs, std::shared_ptr<ByteResponder> responder);
    ~PrefillJob();  // settles the account
    void start();

  private:
    void advance();
    void submit(std::uint32_t begin, std::uint32_t end);
    void on_page(PromptPage page);
    void on_end(const GenerationEnd& end, std::uint32_t num_tokens);
    void translate();
    Result<Bytes> translated(std::vector<PromptPage> pages) const;
    void send(Bytes record);
    void fail(const Refusal& refusal);
    void give_up();

    std::size_t group_size() const { return handed_page_tokens / inputs_.source.page_tokens; }
    bool has_group() const;
    std::uint64_t held_bytes() const;
    bool has_room_for_window() const;

    const PrefillJobInputs inputs_;
    const std::uint32_t num_tokens_;     // tokens of the prompt that full pages of the cache have
    const std::uint32_t window_tokens_;  // tokens of a window, whole pages of the stream

    std::mutex mutex_;  // guards the following members
    // Empty once the stream has ended or its client has disconnected.
    std::shared_ptr<ByteResponder> responder_;
    std::uint32_t submitted_tokens_;  // end of the last window that the engine has got
    std::uint64_t computed_tokens_ = 0;
    std::optional<GenerationId> id_;  // of the window that the engine computes
    bool is_computing_ = false;
    std::deque<PromptPage> pages_;  // not translated yet
    bool is_translating_ = false, is_begun_ = false, is_counted_ = false;
    std::uint64_t unsent_bytes_ = 0;  // of records that the client has not read yet
};

}  // namespace moex
