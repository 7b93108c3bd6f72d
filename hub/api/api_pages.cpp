// Pages of keys and values that a client sends (/v1/pages): a text is opened, its pages are taken,
// and a chat names it in moex.pages. The rows are kept by jobs/taken_pages.h.
#include <algorithm>
#include <optional>

#include "hub/api/api_state.h"
#include "hub/api/body_fields.h"
#include "hub/api/jobs/taken_pages.h"
#include "protocol/text.h"

namespace moex {
namespace {

Refusal takes_no_pages() {
    return {501, "This hub takes no keys and values.", "not_supported", ""};
}

Refusal refusal_of_page(const Error& error) {
    switch (error.code) {
        case ErrorCode::not_found:
            return {404, "There are no pages of this name, or no longer.", "pages_unknown", ""};
        case ErrorCode::bad_order: return {409, error.message, "pages_missing", ""};
        case ErrorCode::no_space:
        case ErrorCode::unavailable:
            return refuse_for_now(503, error.message, "pages_full", std::chrono::seconds(10));
        default: return {400, error.message, "bad_page", ""};
    }
}

struct OpenWish {
    std::string model, name;
    std::vector<TokenId> prompt;
    std::uint32_t held = 0;  // tokens of the prompt of which the client has rows
};

Checked<OpenWish> read_open_wish(const OrderedJson& body, std::size_t vocab_size) {
    MOEX_OR_REFUSE(prefill, read_prefill(body, vocab_size));
    BodyFields fields(body);
    OpenWish wish{.model = std::move(prefill.model), .prompt = std::move(prefill.prompt)};
    wish.held = static_cast<std::uint32_t>(wish.prompt.size());
    fields.string("pages", wish.name);
    fields.whole("held", 0, wish.held, wish.held);
    if (fields.problem()) return *fields.problem();
    return wish;
}

OrderedJson pages_json(const std::string& name, std::uint32_t num_tokens) {
    OrderedJson shown{{"pages", nullptr}, {"tokens", num_tokens}};
    if (!name.empty()) shown["pages"] = name;
    return shown;
}

// The records of a body, each behind its length as a u32.
Checked<std::vector<ByteView>> records_of(std::string_view body) {
    std::vector<ByteView> records;
    const ByteView all = as_byte_view(body);
    for (std::size_t at = 0; at < all.size();) {
        ByteReader head(all.subspan(at));
        const std::uint32_t size = head.u32();
        if (head.overrun() || size == 0 || size > head.remaining_bytes())
            return Refusal{400, text("The record at byte ", at, " is cut short."), "bad_page", ""};
        records.push_back(head.take(size));
        at += sizeof(std::uint32_t) + size;
    }
    return records;
}

}  // namespace

// Opens a text, and copies the pages of its beginning that the hub has already.
void ApiState::open_pages(const HttpRequest& request, const Responder& responder) const {
    if (!options.taken) return responder->refuse(takes_no_pages());
    const auto read = [&]() -> Checked<OpenWish> {
        MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
        MOEX_OR_REFUSE(wish, read_open_wish(body, package->config().vocab_size));
        MOEX_ADMIT(check_model(wish.model));
        MOEX_ADMIT(check_fits(wish.prompt, "prompt"));
        return wish;
    };
    const auto wish = read();
    if (!wish.ok()) return responder->refuse(wish.refusal());

    TakenPages& taken = *options.taken;
    const std::string owner = request.owner;
    const bool goes_on = taken.num_tokens(owner, wish->name).ok();
    const std::string name = taken.open(owner, wish->name, wish->prompt);
    const std::uint32_t page_tokens = taken.source().page_tokens;

    GenerationRequest look;
    look.prompt = wish->prompt;
    look.client = request.client;
    if (goes_on) look.scope = TakenPages::scope_of(name);
    look.only_looks = true;
    const auto kept = taken.num_tokens(owner, name);
    look.pages_from = kept.ok() ? *kept / page_tokens : 0;
    // The last token is computed in any case, because its logits are needed.
    const auto last = static_cast<std::uint32_t>(wish->prompt.size()) - 1;
    const std::uint32_t wanted = std::min(wish->held, last) / page_tokens * page_tokens;
    // A text that was there before keeps its pages, and can be opened again.
    const auto give_up = [&taken, owner, name, goes_on] {
        if (!goes_on) taken.remove(owner, name);
    };
    GenerationSink sink;
    sink.on_page = [&taken, owner, name](PromptPage page) {
        // Without room the client sends the page itself, or the hub computes it.
        (void)taken.take_own(owner, name, page.index, std::move(page.rows));
    };
    sink.on_end = [&taken, owner, name, goes_on, wanted, give_up,
                   responder](const GenerationEnd& end) {
        if (end.reason != FinishReason::length) {
            give_up();
            return responder->refuse(
                refusal_of(end.reason == FinishReason::error
                               ? end.error
                               : Error{ErrorCode::cancelled, "The server is stopping."}));
        }
        // The hub knows all: a chat without moex.pages finds it.
        if (!goes_on && end.stats.cached_tokens >= wanted) {
            taken.remove(owner, name);
            return responder->respond(json_response(pages_json("", end.stats.cached_tokens)));
        }
        const auto has = taken.num_tokens(owner, name);
        if (!has.ok()) return responder->refuse(refusal_of_page(has.error()));
        responder->respond(json_response(pages_json(name, *has)));
    };
    if (const auto id = engine->submit(std::move(look), std::move(sink)); !id.ok()) {
        give_up();
        responder->refuse(refusal_of(id.error()));
    }
}

std::string ApiState::scope_of_pages(const HttpRequest& request, const std::string& name) const {
    const bool is_there = options.taken && options.taken->num_tokens(request.owner, name).ok();
    return is_there ? TakenPages::scope_of(name) : std::string();
}

// Takes pages in order, up to the first that is refused.
Checked<HttpResponse> ApiState::take_pages(const HttpRequest& request) const {
    if (!options.taken) return takes_no_pages();
    TakenPages& taken = *options.taken;
    MOEX_OR_REFUSE(place, prefills->take(request.owner));
    const auto before = taken.num_tokens(request.owner, request.rest);
    if (!before.ok()) return refusal_of_page(before.error());
    MOEX_OR_REFUSE(records, records_of(request.body));
    if (request.account)
        MOEX_ADMIT(request.account->reserve(std::uint64_t{handed_page_tokens} * records.size()));

    std::uint32_t has = *before;
    std::optional<Refusal> refusal;
    for (const ByteView record : records) {
        const auto now = taken.take(request.owner, request.rest, record);
        if (!now.ok()) {
            refusal = refusal_of_page(now.error());
            refusal->numbers = {{"tokens", has}};
            break;
        }
        has = *now;
    }
    const std::uint32_t added = has - std::min(*before, has);
    if (request.account) {
        request.account->count(added, 0);
        request.account->settle(added);
    }
    if (refusal) return *refusal;
    return json_response(pages_json(request.rest, has));
}

Checked<HttpResponse> ApiState::forget_pages(const HttpRequest& request) const {
    if (!options.taken) return takes_no_pages();
    const auto has = options.taken->num_tokens(request.owner, request.rest);
    if (!has.ok()) return refusal_of_page(has.error());
    options.taken->remove(request.owner, request.rest);
    return json_response(pages_json("", 0));
}

}  // namespace moex
