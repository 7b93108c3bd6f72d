#include "hub/api/jobs/prefill_job.h"

#include <algorithm>

#include "hub/api/hub_stops.h"
#include "hub/base/sha256.h"
#include "protocol/kv_translate.h"

namespace moex {
namespace {

constexpr std::uint32_t window_tokens_min = handed_page_tokens, window_tokens_max = 4096;

std::uint32_t window_of(const KvSource& source, std::uint64_t bytes_max) {
    const std::uint64_t fitting = bytes_max / kv_rows_bytes(source, 1);
    const auto tokens = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(fitting, window_tokens_min, window_tokens_max));
    return tokens / handed_page_tokens * handed_page_tokens;
}

}  // namespace

Checked<PrefillParams> read_prefill(const OrderedJson& body, std::size_t vocab_size) {
    BodyFields fields(body);
    PrefillParams params;
    fields.string("model", params.model);
    fields.whole("first_page", 0, 1 << 24, params.first_page);

    std::string row_type = "f16";
    fields.string("rows", row_type);
    if (row_type == "f32")
        params.row_type = KvRowType::f32;
    else if (row_type == "u8")
        params.row_type = KvRowType::u8;
    else if (row_type != "f16")
        fields.wrong("rows", R"("f32", "f16" or "u8")", fields.find("rows"));

    constexpr const char* wanted = "a list of at least one token id";
    const OrderedJson* const prompt = fields.find("prompt");
    if (!prompt || !prompt->is_array() || prompt->empty()) {
        fields.wrong("prompt", wanted, prompt);
    } else {
        for (const OrderedJson& id : *prompt) {
            const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() < vocab_size;
            if (!is_id) {
                fields.wrong("prompt", text("token ids below ", vocab_size), &id);
                break;
            }
            params.prompt.push_back(id.get<TokenId>());
        }
    }
    if (fields.problem()) return *fields.problem();
    return params;
}

Checked<std::shared_ptr<void>> PrefillPlaces::take(const std::string& owner) {
    const std::lock_guard lock(mutex_);
    if (num_taken_ >= places_max)
        return refuse_for_now(503, text(places_max, " prompts are handed off already."),
                              "overloaded", 1s);
    std::size_t& taken = taken_[owner];
    if (taken >= per_owner_max)
        return refuse_for_now(429,
                              text("This client has ", per_owner_max,
                                   " prompts that are handed off: read or close one first."),
                              "rate_limit_exceeded", 1s);
    ++taken;
    ++num_taken_;
    return std::shared_ptr<void>(this, [self = shared_from_this(), owner](void*) {
        const std::lock_guard given(self->mutex_);
        --self->num_taken_;
        if (--self->taken_[owner] == 0) self->taken_.erase(owner);
    });
}

PrefillJob::PrefillJob(PrefillJobInputs inputs, std::shared_ptr<ByteResponder> responder)
    : inputs_(std::move(inputs)),
      num_tokens_(static_cast<std::uint32_t>(inputs_.params.prompt.size()) /
                  inputs_.source.page_tokens * inputs_.source.page_tokens),
      window_tokens_(window_of(inputs_.source, inputs_.held_bytes_max)),
      responder_(std::move(responder)),
      submitted_tokens_(inputs_.params.first_page * handed_page_tokens) {}

// A client that disconnected is charged for the tokens that were computed.
PrefillJob::~PrefillJob() {
    if (inputs_.account) inputs_.account->settle(computed_tokens_);
}

void PrefillJob::start() {
    responder_->on_disconnect([weak = weak_from_this()] {
        if (const auto job = weak.lock()) job->give_up();
    });
    if (inputs_.account)
        inputs_.account->on_key_ended([weak = weak_from_this()] {
            if (const auto job = weak.lock())
                job->fail({401, "The API key was revoked or has expired.", "invalid_api_key", ""});
        });
    advance();
}

// The bytes that wait for the engine's thread, for the pool or for the client. Requires the lock.
std::uint64_t PrefillJob::held_bytes() const {
    std::uint64_t bytes = unsent_bytes_;
    for (const PromptPage& page : pages_) bytes += page.rows.size();
    return bytes;
}

// Returns true if the rows of a further window may be held beside those that are. So a window is
// computed while the one before it is sent. Requires the lock.
bool PrefillJob::has_room_for_window() const {
    const std::uint64_t held = held_bytes();
    return held == 0 ||
           held + kv_rows_bytes(inputs_.source, window_tokens_) <= 2 * inputs_.held_bytes_max;
}

// Returns true if the pages of one page of the stream are there. Requires the lock.
bool PrefillJob::has_group() const {
    const bool is_last = !is_computing_ && submitted_tokens_ >= num_tokens_;
    return pages_.size() >= group_size() || (is_last && !pages_.empty());
}

// Does what can be done next: translates a page, computes a window, or ends the stream.
void PrefillJob::advance() {
    std::shared_ptr<ByteResponder> ended;
    bool translates = false;
    std::uint32_t begin = 0, end = 0;
    {
        const std::lock_guard lock(mutex_);
        if (!responder_) return;
        if (!is_translating_ && has_group() && unsent_bytes_ <= inputs_.held_bytes_max)
            is_translating_ = translates = true;
        if (!is_computing_ && submitted_tokens_ < num_tokens_ && has_room_for_window()) {
            begin = submitted_tokens_;
            end = submitted_tokens_ = std::min(num_tokens_, begin + window_tokens_);
            is_computing_ = true;
        }
        const bool is_done = submitted_tokens_ >= num_tokens_ && !is_computing_ &&
                             !is_translating_ && pages_.empty();
        if (is_done) {
            if (!is_begun_) responder_->begin_records("application/octet-stream");
            ended = std::move(responder_);
        }
    }
    if (ended) {
        ended->end_stream();
        if (inputs_.observer->on_finished) inputs_.observer->on_finished("stop");
        return;
    }
    if (translates && !inputs_.run_later([self = shared_from_this()] { self->translate(); }))
        return fail({503, "too many texts wait to be read", "text_queue_full", ""});
    if (end > begin) submit(begin, end);
}

// Lets the engine compute the tokens [begin, end). The tokens before `begin` are in its cache.
void PrefillJob::submit(std::uint32_t begin, std::uint32_t end) {
    GenerationRequest request;
    const std::vector<TokenId>& prompt = inputs_.params.prompt;
    request.prompt.assign(prompt.begin(), prompt.begin() + end);
    request.client = inputs_.client;
    request.pages_from = begin / inputs_.source.page_tokens;

    GenerationSink sink;
    sink.on_page = [self = shared_from_this()](PromptPage page) { self->on_page(std::move(page)); };
    sink.on_end = [self = shared_from_this(), end](const GenerationEnd& ended) {
        self->on_end(ended, end);
    };
    const auto id = inputs_.engine->submit(std::move(request), std::move(sink));
    if (!id.ok()) return fail(refusal_of(id.error()));

    bool is_wanted;
    {
        const std::lock_guard lock(mutex_);
        is_wanted = responder_ != nullptr;
        if (is_computing_ && submitted_tokens_ == end) id_ = *id;
    }
    if (!is_wanted) inputs_.engine->cancel(*id);
}

void PrefillJob::on_page(PromptPage page) {
    {
        const std::lock_guard lock(mutex_);
        if (!responder_) return;
        pages_.push_back(std::move(page));
    }
    advance();
}

void PrefillJob::on_end(const GenerationEnd& end, std::uint32_t num_tokens) {
    {
        const std::lock_guard lock(mutex_);
        is_computing_ = false;
        id_.reset();
        if (end.reason == FinishReason::length) computed_tokens_ = num_tokens;
    }
    if (end.reason == FinishReason::error) return fail(refusal_of(end.error));
    if (end.reason == FinishReason::cancelled) return fail(refuse_since_hub_stops());
    advance();
}

// Translates the next pages of the cache to one page of the stream, and sends it.
void PrefillJob::translate() {
    std::vector<PromptPage> group;
    {
        const std::lock_guard lock(mutex_);
        if (!responder_) return;
        const std::size_t count = std::min(group_size(), pages_.size());
        std::move(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(count),
                  std::back_inserter(group));
        pages_.erase(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(count));
    }
    auto record = translated(std::move(group));
    if (!record.ok()) return fail(refusal_of(record.error()));
    send(*std::move(record));
    {
        const std::lock_guard lock(mutex_);
        is_translating_ = false;
    }
    advance();
}

Result<Bytes> PrefillJob::translated(std::vector<PromptPage> pages) const {
    const std::span<const TokenId> prompt = inputs_.params.prompt;
    const auto hash_of = [&](std::uint32_t num_tokens) {
        return sha256(std::as_bytes(prompt.first(num_tokens)));
    };
    const std::uint32_t page_tokens = inputs_.source.page_tokens;
    std::vector<KvPage> own;
    for (const PromptPage& page : pages) {
        const std::uint32_t first = page.index * page_tokens;
        const auto tokens = prompt.subspan(first, page_tokens);
        own.push_back({.source = inputs_.source,
                       .before = hash_of(first),
                       .first_position = first,
                       .tokens = {tokens.begin(), tokens.end()},
                       .rows = page.rows});
    }
    MOEX_ASSIGN(resized, resize_kv_pages(own, handed_page_tokens, hash_of));
    MOEX_ASSIGN(page, convert_kv_rows(resized.front().page, inputs_.params.row_type));
    return encode_kv_page(page.page);
}

void PrefillJob::send(Bytes record) {
    const std::uint64_t size = record.size();
    std::shared_ptr<ByteResponder> responder;
    {
        const std::lock_guard lock(mutex_);
        if (!responder_) return;
        responder = responder_;
        unsent_bytes_ += size;
        if (!std::exchange(is_begun_, true)) responder->begin_records("application/octet-stream");
    }
    responder->send_record(std::make_shared<const Bytes>(std::move(record)),
                           [self = shared_from_this(), size] {
                               bool is_first;
                               {
                                   const std::lock_guard lock(self->mutex_);
                                   self->unsent_bytes_ -= size;
                                   is_first = !std::exchange(self->is_counted_, true);
                               }
                               if (is_first && self->inputs_.account)
                                   self->inputs_.account->count(self->num_tokens_, 0);
                               self->advance();
                           });
}

// Before the first page the client gets the refusal. After it the connection ends before the last
// chunk, and the pages that the client has are whole.
void PrefillJob::fail(const Refusal& refusal) {
    std::shared_ptr<ByteResponder> responder;
    bool is_begun;
    {
        const std::lock_guard lock(mutex_);
        responder = std::move(responder_);
        is_begun = is_begun_;
    }
    if (!responder) return;
    if (!is_begun) responder->refuse(refusal);
    responder.reset();
    give_up();
    if (inputs_.observer->on_finished) inputs_.observer->on_finished("error");
}

void PrefillJob::give_up() {
    std::optional<GenerationId> id;
    {
        const std::lock_guard lock(mutex_);
        responder_.reset();
        pages_.clear();
        std::swap(id, id_);
    }
    if (id) inputs_.engine->cancel(*id);
}

}  // namespace moex
