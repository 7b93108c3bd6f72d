// A whole model that answers the user of this device: text in, text out, one answer after the
// other. The hub's own sampler draws the tokens, so the same seed and the same logits give the same
// tokens as at the hub. The beginning that a prompt shares with the cached sequence, or with pages
// that a PageShelf kept, is not computed again. All calls are made on one thread. Whether a GPU or
// a processor computes is hidden behind LocalPlace.
//
// Of a model with recurrent states, few leave for the shelf, because each is as large as thousands
// of tokens: at the end of what all conversations with this system prompt begin with, at the last
// page's end of the prompt, and at the end of the answer.
//   a system prompt of 300 tokens, a prompt of 900, an answer to 1,000: after 256, 896 and 1,000
//   tokens (on a processor 256 and 896: it keeps states at ends of pages alone)
//
// A question may be asked before all layers are here. On a GPU its first tokens, as many as one
// step takes, are then read layer by layer while later layers are loaded
// (GpuDecoder::begin_early()); the other tokens follow when the model is whole. The bits are those
// of a prompt that is read at once. A processor reads all of the prompt when the model is whole.
//
// Where tokens drafted from the text itself pay, a step computes them, too (local_drafts.h). The
// words stay the same.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/stop_filter.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "hub/route/route.h"
#include "web-worker/decoder/answer_loop.h"
#include "web-worker/local/local_drafts.h"
#include "web-worker/local/local_pages.h"
#include "web-worker/local/local_place.h"
#include "web-worker/local/local_question.h"

namespace moex {

// The text files of a package, and the defaults of the model's makers for sampling and stopping.
struct LocalText {
    std::string tokenizer_json, tokenizer_config_json;
    GenerationDefaults generation;
    // SHA-256 of manifest.json; SHA-256 of tokenizer.json, then tokenizer_config.json
    Sha256 manifest_sha256{}, texts_sha256{};
};

// The reason why an answer ended, and its figures.
struct LocalEnd {
    AnswerEnd how = AnswerEnd::stop;
    std::uint32_t prompt_tokens = 0, completion_tokens = 0;
    std::uint32_t cached_tokens = 0;  // prompt tokens that were not computed for this answer
    std::uint32_t handed_tokens = 0;  // of the cached tokens, those whose rows depend on the hub's
    double prompt_tokens_per_s = 0;   // rate of the other prompt tokens; 0: not measured
    double tokens_per_s = 0;          // rate after the first token; 0 if the answer is too short
    DraftCounts drafts;
};

// Answers questions with a whole model on this device.
class LocalModel {
  public:
    // Reads the model's text files. `shelf` outlives the model.
    static Result<std::unique_ptr<LocalModel>> create(const LocalText& words, PageShelf& shelf);
    // Gives the model the place that computes it. Required before all calls below.
    void use(std::unique_ptr<LocalPlace> place);
    const LocalPlace& place() const { return *place_; }

    bool is_whole() const { return decoder_->is_whole(); }
    std::uint32_t num_layers() const { return decoder_->num_layers(); }
    // Loads the experts of a layer, whose files are open by now.
    Status load_layer(std::uint32_t layer);

    std::uint32_t context_tokens() const { return decoder_->context_tokens(); }
    // Returns true if a part of a long text's pages is outside of the device's memory.
    bool is_paged() const { return decoder_->is_paged(); }
    // Returns the number of tokens of the present prompt whose keys and values are held.
    std::uint32_t num_held() const { return pages_->num_held(); }
    // Adds what the model knows of the present prompt: its tokens, what is held of it, the context,
    // and the bytes of a token's keys and values.
    void add_facts(RouteFacts& facts) const;

    struct Events {
        // Receives the next piece of the answer: whole UTF-8 characters, never empty.
        std::function<void(std::string_view text)> on_text;
        std::function<void(Result<LocalEnd>)> on_end;  // called once, as the last event
        // Called before the model is whole: the GPU has computed the first `num_layers` layers for
        // the prompt's first `num_tokens` tokens that had to be computed.
        std::function<void(std::uint32_t num_layers, std::uint32_t num_tokens)> on_early;
    };
    // Starts an answer to the question `body` (local_question.h). Only one answer at a time may
    // run. Errors: invalid_argument if a field is invalid, or if the template refuses the messages;
    // overloaded if the context is too small for the messages.
    Status ask(const nlohmann::ordered_json& body, Events events);
    void cancel();  // on_end follows

    // Reads a page of the text that PageShelf::keep() told of, of which the shelf knows the first
    // `num_tokens` tokens; or, if `is_state`, the recurrent state at its end. Error: not_found if
    // another text is held by now, or if the state is not kept.
    void read_page(std::uint32_t turn, std::uint32_t index, std::uint32_t num_tokens, bool is_state,
                   const Sha256& before, std::function<void(Result<Bytes>)> done);
    // Reads a page of the present prompt while PageShelf::find() has not ended, as a page of a text
    // of `num_tokens` tokens, with rows in 8 or 16 bits, to be sent to the hub. Error: not_found if
    // fewer tokens are held.
    void read_held_page(std::uint32_t index, std::uint32_t num_tokens, bool as_u8,
                        const Sha256& before, std::function<void(Result<Bytes>)> done);

  private:
    LocalModel() = default;
    Status read_text(const LocalText& words);
    Result<std::vector<TokenId>> prompt_of(const LocalQuestion& question) const;
    std::uint32_t shared_tokens(const LocalQuestion& question) const;
    std::vector<std::uint32_t> chosen_states(std::uint32_t num_tokens) const;
    std::unique_ptr<AnswerLoop> loop_for(const LocalQuestion& question, std::uint32_t max_tokens);
    void start(const LocalQuestion& question);
    void start_early(const LocalQuestion& question);
    void start_loop(const LocalQuestion& question);
    void on_tokens(std::span<const std::uint32_t> ids);
    void on_end(Result<AnswerEnd> how);
    void show(const std::string& text);
    void keep(std::uint32_t num_tokens);

    std::unique_ptr<LocalPlace> place_;
    SequenceDecoder* decoder_ = nullptr;           // of `place_`
    std::optional<LocalQuestion> early_question_;  // it waits for the other layers
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::shared_ptr<const ChatTemplate> chat_template_;
    GenerationDefaults generation_;
    Sha256 manifest_sha256_{}, texts_sha256_{};
    std::vector<std::uint32_t> held_;  // tokens whose keys and values the decoder holds
    PageShelf* shelf_ = nullptr;
    std::optional<LocalPages> pages_;
    LocalDrafts drafts_;
    std::uint32_t turn_ = 0;  // number of the question to which `held_` belongs

    // State of the running answer.
    Events events_;
    LocalEnd end_;
    std::uint32_t fed_from_ = 0;  // tokens of the prompt that the loop did not read
    // the last page's end of the tokens that all conversations with this system prompt begin with
    std::uint32_t shared_end_ = 0;
    std::optional<StreamDecoder> bytes_;
    std::optional<StopFilter> filter_;
    std::chrono::steady_clock::time_point started_at_, first_at_, last_at_;
    std::unique_ptr<AnswerLoop> loop_;  // null while the shelf looks for pages
    bool is_cancelled_ = false;         // by a cancel() before the loop has started
    LifeGuard life_;
};

}  // namespace moex
