#include "web-worker/local/local_model.h"

#include <algorithm>
#include <utility>

#include "protocol/kv_translate.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

// Returns the text that the generation continues: the words of the last message, or its thoughts if
// it has no words yet.
std::string last_words(const nlohmann::ordered_json& message) {
    const std::string content = message.value("content", "");
    return content.empty() ? message.value("reasoning_content", "") : content;
}

}  // namespace

Result<std::unique_ptr<LocalModel>> LocalModel::create(const LocalText& words, PageShelf& shelf) {
    std::unique_ptr<LocalModel> made(new LocalModel);
    MOEX_TRY(made->read_text(words));
    made->shelf_ = &shelf;
    return Result<std::unique_ptr<LocalModel>>(std::move(made));
}

void LocalModel::use(std::unique_ptr<LocalPlace> place) {
    place_ = std::move(place);
    decoder_ = &place_->decoder();
    KvSource source = place_->kv_source();
    source.model = manifest_sha256_;
    source.texts = texts_sha256_;
    pages_.emplace(*decoder_, source);
}

Status LocalModel::load_layer(std::uint32_t layer) {
    if (is_whole()) return {};
    MOEX_TRY(place_->load_layer(layer));
    if (!is_whole() || !early_question_) return {};
    const LocalQuestion question = *std::exchange(early_question_, std::nullopt);
    start_loop(question);
    return {};
}

Status LocalModel::read_text(const LocalText& words) {
    MOEX_ASSIGN(tokenizer, Tokenizer::load(words.tokenizer_json, words.tokenizer_config_json));
    MOEX_ASSIGN(chat_template, ChatTemplate::from_tokenizer_config(words.tokenizer_config_json));
    tokenizer_ = std::move(tokenizer);
    chat_template_ = std::move(chat_template);
    generation_ = words.generation;
    manifest_sha256_ = words.manifest_sha256;
    texts_sha256_ = words.texts_sha256;
    return {};
}

Result<std::vector<TokenId>> LocalModel::prompt_of(const LocalQuestion& question) const {
    nlohmann::ordered_json messages = question.messages;
    if (!messages.is_array() || messages.empty())
        return Error{ErrorCode::invalid_argument, "no messages"};
    const bool continues = messages.back().value("role", "") == "assistant";
    nlohmann::ordered_json variables = {{"add_generation_prompt", !continues}};
    if (!question.reasoning_effort.empty())
        variables["reasoning_effort"] = question.reasoning_effort;
    if (!continues) return chat_template_->render_ids(messages, variables, *tokenizer_);
    return chat_template_->render_open_ids(messages, variables, last_words(messages.back()),
                                           *tokenizer_);
}

// Returns how many tokens of the prompt are those of all conversations with its system prompt.
std::uint32_t LocalModel::shared_tokens(const LocalQuestion& question) const {
    LocalQuestion other;
    other.messages = nlohmann::ordered_json::array();
    other.reasoning_effort = question.reasoning_effort;
    for (const auto& message : question.messages) {
        const std::string role = message.value("role", "");
        if (role != "system" && role != "developer") break;
        other.messages.push_back(message);
    }
    if (other.messages.empty()) return 0;
    other.messages.push_back({{"role", "user"}, {"content", "?"}});
    const auto tokens = prompt_of(other);
    if (!tokens.ok()) return 0;
    return static_cast<std::uint32_t>(
        std::mismatch(held_.begin(), held_.end(), tokens->begin(), tokens->end()).first -
        held_.begin());
}

// Returns the ends at which states of the first `num_tokens` tokens are to be kept, in ascending
// order: that of the system prompt, the prompt's last page's, and the latest that the decoder
// keeps. The decoder may have dropped the first two meanwhile.
std::vector<std::uint32_t> LocalModel::chosen_states(std::uint32_t num_tokens) const {
    std::vector<std::uint32_t> ends;
    if (decoder_->state_bytes() == 0) return ends;
    const auto page_end = [](std::uint32_t tokens) {
        return tokens / kv_page_tokens * kv_page_tokens;
    };
    std::uint32_t latest = num_tokens;
    if (!decoder_->keeps_state(latest)) latest = page_end(latest);
    while (latest > 0 && !decoder_->keeps_state(latest)) latest -= kv_page_tokens;
    for (const std::uint32_t end : {shared_end_, page_end(end_.prompt_tokens), latest})
        if (end > 0 && end <= num_tokens) ends.push_back(end);
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    return ends;
}

// Returns the loop that answers the question. For a greedy answer, a GPU chooses the likeliest
// token itself, so that the loop does not wait for a token before it issues the next step.
std::unique_ptr<AnswerLoop> LocalModel::loop_for(const LocalQuestion& question,
                                                 std::uint32_t max_tokens) {
    const AnswerLoop::Events events{
        .on_tokens = [this](std::span<const std::uint32_t> ids) { on_tokens(ids); },
        .on_end = [this](Result<AnswerEnd> how) { on_end(std::move(how)); }};
    const auto& stop_ids = generation_.eos_token_ids;
    Sampler sampler(question.sampling, held_, max_tokens);
    auto greedy = sampler.num_likeliest() == 1
                      ? place_->greedy_loop(max_tokens, stop_ids, &drafts_, events)
                      : nullptr;
    drafts_.begin(held_, greedy ? LocalDrafts::Steps::issued_ahead : LocalDrafts::Steps::waited_for,
                  question.draft_tokens);
    if (greedy) return greedy;
    return std::make_unique<SampledLoop>(
        *decoder_,
        SampledOptions{.max_tokens = max_tokens, .stop_ids = stop_ids, .drafts = &drafts_},
        std::make_unique<SamplerChooser>(std::move(sampler)), events);
}

Status LocalModel::ask(const nlohmann::ordered_json& body, Events events) {
    MOEX_ASSIGN(question, read_question(body, generation_, *tokenizer_, decoder_->vocab_size()));
    MOEX_ASSIGN(prompt, prompt_of(question));
    const std::uint32_t context = context_tokens();
    if (prompt.empty()) return Error{ErrorCode::invalid_argument, "the prompt has no tokens"};
    if (prompt.size() >= context)
        return Error{ErrorCode::overloaded,
                     text("the prompt has ", prompt.size(), " tokens, the context ", context)};

    events_ = std::move(events);
    end_ = {.prompt_tokens = static_cast<std::uint32_t>(prompt.size())};
    bytes_.emplace(*tokenizer_);
    filter_.emplace(question.stops);

    // Keep the cached tokens that the prompt begins with; of a model with a recurrent state, up to
    // the last state that is kept.
    const auto common =
        std::mismatch(held_.begin(), held_.end(), prompt.begin(), prompt.end()).first -
        held_.begin();
    decoder_->rewind(static_cast<std::uint32_t>(common));
    held_.assign(prompt.begin(), prompt.end());
    const bool has_states = decoder_->state_bytes() > 0;
    shared_end_ = has_states ? shared_tokens(question) / kv_page_tokens * kv_page_tokens : 0;
    decoder_->hold_state(shared_end_);
    ++turn_;
    loop_ = nullptr;
    is_cancelled_ = false;
    pages_->begin(held_, decoder_->num_tokens());
    std::optional<std::uint32_t> state_after;
    if (has_states) state_after = decoder_->num_tokens();
    shelf_->find(held_, pages_->first_page(), state_after,
                 {.take =
                      [this, life = life_.watch()](PageShelf::Origin origin, const Sha256& before,
                                                   ByteView page) {
                          if (!life.alive()) return PageShelf::Taken::refused;
                          return pages_->take(origin, before, page);
                      },
                  .done =
                      [this, question = std::move(question), life = life_.watch()] {
                          if (life.alive()) start(question);
                      }});
    return {};
}

// Starts the answer after the tokens that the GPU holds. At least the prompt's last token is
// computed, because its logits are needed.
void LocalModel::start(const LocalQuestion& question) {
    const auto num_prompt = static_cast<std::uint32_t>(held_.size());
    decoder_->resume(std::min(pages_->num_held(), num_prompt - 1));
    end_.cached_tokens = decoder_->num_tokens();
    end_.handed_tokens = end_.cached_tokens - pages_->num_own(end_.cached_tokens);
    if (is_cancelled_) return on_end(AnswerEnd::cancelled);
    if (is_whole()) return start_loop(question);
    start_early(question);
}

// Reads the first tokens through the layers that are here. The last token is left out, because its
// logits need all layers.
void LocalModel::start_early(const LocalQuestion& question) {
    early_question_ = question;
    const auto rest = std::span(held_).subspan(end_.cached_tokens);
    const std::size_t num_early = decoder_->reads_early()
                                      ? std::min<std::size_t>(decoder_->rows_max(), rest.size() - 1)
                                      : 0;
    if (num_early == 0) return;
    const Status begun = decoder_->begin_early(
        rest.first(num_early),
        [this, num = static_cast<std::uint32_t>(num_early)](std::uint32_t layers) {
            if (early_question_ && events_.on_early) events_.on_early(layers, num);
        });
    if (begun.ok()) return;
    early_question_.reset();
    on_end(begun.error());
}

// Answers with the whole model. The decoder may hold tokens of the prompt that were read early.
void LocalModel::start_loop(const LocalQuestion& question) {
    const std::uint32_t room = context_tokens() - end_.prompt_tokens;
    loop_ = loop_for(question, std::min(question.max_tokens.value_or(room), room));
    started_at_ = std::chrono::steady_clock::now();
    fed_from_ = decoder_->num_tokens();
    loop_->start(std::span(held_).subspan(fed_from_));
}

void LocalModel::cancel() {
    is_cancelled_ = true;
    if (loop_) return loop_->cancel();
    if (!early_question_) return;
    early_question_.reset();
    decoder_->rewind(end_.cached_tokens);
    on_end(AnswerEnd::cancelled);
}

void LocalModel::read_page(std::uint32_t turn, std::uint32_t index, std::uint32_t num_tokens,
                           bool is_state, const Sha256& before,
                           std::function<void(Result<Bytes>)> done) {
    if (turn != turn_ || num_tokens > held_.size())
        return done(Error{ErrorCode::not_found, "another text is held by now"});
    pages_->read(std::span(held_).first(num_tokens), index,
                 is_state ? KvPart::state : KvPart::whole, before, std::move(done));
}

void LocalModel::read_held_page(std::uint32_t index, std::uint32_t num_tokens, bool as_u8,
                                const Sha256& before, std::function<void(Result<Bytes>)> done) {
    if (num_tokens > num_held()) return done(Error{ErrorCode::not_found, "fewer tokens are held"});
    // Codes stay codes, because 16 bits would say no more.
    const bool has_codes = pages_->source().row_type == KvRowType::u8;
    const KvRowType wanted = as_u8 || has_codes ? KvRowType::u8 : KvRowType::f16;
    pages_->read(std::span(held_).first(num_tokens), index, KvPart::whole, before,
                 [wanted, done = std::move(done)](Result<Bytes> read) {
                     if (!read.ok()) return done(std::move(read));
                     const auto page = decode_kv_page(*read);
                     if (!page.ok()) return done(page.error());
                     if (page->source.row_type == wanted) return done(std::move(read));
                     const auto converted = convert_kv_rows(*page, wanted);
                     if (!converted.ok()) return done(converted.error());
                     done(encode_kv_page(converted->page));
                 });
}

void LocalModel::add_facts(RouteFacts& facts) const {
    KvSource source = pages_->source();
    facts.prompt_tokens = static_cast<std::uint32_t>(held_.size());
    facts.held_tokens = num_held();
    facts.context_tokens = context_tokens();
    // The hub's pages have no recurrent state, and it takes none.
    if (decoder_->state_bytes() > 0) facts.hub_hands_off = facts.hub_takes_pages = false;
    source.row_type = KvRowType::f16;
    facts.f16_bytes_per_token = static_cast<double>(kv_rows_bytes(source, 1));
    source.row_type = KvRowType::u8;
    facts.u8_bytes_per_token = static_cast<double>(kv_rows_bytes(source, 1));
}

void LocalModel::show(const std::string& text) {
    if (!text.empty()) events_.on_text(text);
}

void LocalModel::on_tokens(std::span<const std::uint32_t> ids) {
    held_.insert(held_.end(), ids.begin(), ids.end());
    last_at_ = std::chrono::steady_clock::now();
    if (end_.completion_tokens == 0) {
        first_at_ = last_at_;
        const std::chrono::duration<double> prompt_took = first_at_ - started_at_;
        if (prompt_took.count() > 0)
            end_.prompt_tokens_per_s = (end_.prompt_tokens - fed_from_) / prompt_took.count();
        // The prompt is read: its full pages stay as they are, whatever the answer adds.
        keep(end_.prompt_tokens / kv_page_tokens * kv_page_tokens);
    }

    std::string shown;
    for (const std::uint32_t id : ids) {
        if (filter_->stopped()) break;
        ++end_.completion_tokens;
        shown += filter_->push(bytes_->push(id));
    }
    if (filter_->stopped()) loop_->cancel();
    show(shown);
}

void LocalModel::on_end(Result<AnswerEnd> how) {
    held_.resize(how.ok() ? std::min<std::size_t>(held_.size(), decoder_->num_tokens()) : 0);
    if (!how.ok()) return events_.on_end(how.error());

    if (loop_) end_.drafts = loop_->draft_counts();
    const bool by_words = filter_->stopped();
    if (!by_words) show(filter_->push(bytes_->finish()));
    if (!filter_->stopped()) show(filter_->finish());
    end_.how = by_words ? AnswerEnd::stop : *how;
    const std::chrono::duration<double> took = last_at_ - first_at_;
    if (end_.completion_tokens > 1 && took.count() > 0)
        end_.tokens_per_s = (end_.completion_tokens - 1) / took.count();
    events_.on_end(end_);
    keep(static_cast<std::uint32_t>(held_.size()));
}

// Offers the shelf the first `num_tokens` tokens, up to the first rows of the hub.
void LocalModel::keep(std::uint32_t num_tokens) {
    const std::uint32_t own = pages_->num_own(num_tokens);
    if (own > 0) shelf_->keep(turn_, std::span(held_).first(own), chosen_states(own));
}

}  // namespace moex
