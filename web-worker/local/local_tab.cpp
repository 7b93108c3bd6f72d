// The WASM side of "this device" in the chat page: one LocalModel over the tab's files, on the GPU
// or the processor of the browser (local_place.h). JSON enters through the exported functions and
// leaves through mx_report():
//   {"progress": {"done_bytes", "all_bytes"}}; {"opened": {"num_layers"}} when questions may be
//   asked and mx_local_layer() may bring the experts of layers; {"ready": {"adapter", "software",
//   "context_tokens", "is_paged"}} when all layers are here, with "processor": {"is_short",
//   "prompt_tokens_per_s", "answer_tokens_per_s"} on a processor; for an answer {"early":
//   {"layers", "num_layers", "tokens"}} for layers that were computed before, {"text"}, ...,
//   {"ended": {"finish_reason", ...}} or {"refused": {"code", "message"}};   {"failed": {"code",
//   "message"}} when the model cannot be used any more.
#include <emscripten.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "web-worker/local/file_bridge.h"
#include "web-worker/local/local_model.h"
#include "web-worker/local/page_bridge.h"
#include "web-worker/local/route_json.h"
#include "web-worker/local/tab_files.h"

namespace moex {
namespace {

using Json = nlohmann::ordered_json;

// The pages in the browser's files (web-worker/browser/page_files.js).
class TabShelf : public PageShelf {
  public:
    void find(std::span<const std::uint32_t> tokens, std::uint32_t first_page,
              std::optional<std::uint32_t> state_after, Found found) override {
        found_ = std::move(found);
        mx_find_pages(tokens.data(), static_cast<std::uint32_t>(tokens.size()), first_page,
                      state_after ? static_cast<int>(*state_after) : -1);
    }
    void keep(std::uint32_t turn, std::span<const std::uint32_t> tokens,
              std::span<const std::uint32_t> states) override {
        mx_keep_pages(turn, tokens.data(), static_cast<std::uint32_t>(tokens.size()), states.data(),
                      static_cast<std::uint32_t>(states.size()));
    }
    Taken take(Origin origin, const Sha256& before, ByteView page) const {
        return found_.take(origin, before, page);
    }
    void end_of_pages() {
        const auto done = std::move(found_.done);
        done();
    }

  private:
    Found found_;
};

// The pages that do not fit into the GPU's memory, in the browser's files.
class TabEvicted : public EvictedPages {
  public:
    void write(std::uint32_t page, ByteView layers, std::function<void(Status)> done) override {
        written_ = std::move(done);
        layer_bytes_ = static_cast<std::uint32_t>(layers.size() / num_layers);
        mx_write_evicted(page, layers.data(), static_cast<std::uint32_t>(layers.size()),
                         num_layers);
    }
    void read(std::uint32_t layer, std::span<const std::uint32_t> pages,
              std::function<void(Result<ByteView>)> done) override {
        read_ = std::move(done);
        mx_read_evicted(layer, pages.data(), static_cast<std::uint32_t>(pages.size()),
                        layer_bytes_);
    }
    // Takes the answer to the call of write() or read(); empty: it failed.
    void answer(ByteView bytes) {
        // Not no_space, which is the GPU's memory: the page would load the model with more pages in
        // files.
        const auto failed = [](const char* message) { return Error{ErrorCode::io_error, message}; };
        if (const auto written = std::exchange(written_, {}))
            return written(bytes.empty() ? Status(failed("a part of the conversation was not kept"))
                                         : Status());
        const auto read = std::exchange(read_, {});
        if (bytes.empty()) return read(failed("a part of the conversation was not read back"));
        read(bytes);
    }
    std::uint32_t num_layers = 1;

  private:
    std::uint32_t layer_bytes_ = 0;
    std::function<void(Status)> written_;
    std::function<void(Result<ByteView>)> read_;
};

struct LocalTab {
    TabShelf shelf;
    TabEvicted evicted;
    std::unique_ptr<TabFiles> files;  // until the model is whole
    std::unique_ptr<LocalModel> model;
    bool is_open = false;  // the model has its place
    LocalModel* open_model() const { return is_open ? model.get() : nullptr; }
};
LocalTab& tab() {
    static LocalTab instance;
    return instance;
}

void report(const Json& message) {
    const std::string json = message.dump(-1, ' ', false, Json::error_handler_t::replace);
    mx_report(json.data(), static_cast<int>(json.size()));
}
void report(const char* what, const Error& error) {
    report({{what, {{"code", error_code_name(error.code)}, {"message", error.message}}}});
}

// Reports the progress of loading once every 8 MiB: a message for each stretch of bytes would cost
// more than the stretch itself.
WeightProgress tell_progress() {
    constexpr std::uint64_t told_every_bytes = 8u << 20;
    return [told = std::uint64_t{0}](std::uint64_t done, std::uint64_t all) mutable {
        if (done < told + told_every_bytes && done < all) return;
        told = done;
        report({{"progress", {{"done_bytes", done}, {"all_bytes", all}}}});
    };
}

void tell_ready() {
    tab().files.reset();
    const PlaceFacts facts = tab().model->place().facts();
    Json ready = {{"adapter", facts.adapter},
                  {"software", facts.is_software},
                  {"context_tokens", tab().model->context_tokens()},
                  {"is_paged", tab().model->is_paged()}};
    if (facts.is_processor)
        ready["processor"] = {{"is_short", facts.is_short},
                              {"prompt_tokens_per_s", facts.speed.prompt_tokens_per_s},
                              {"answer_tokens_per_s", facts.speed.answer_tokens_per_s}};
    report({{"ready", std::move(ready)}});
}

void on_place(Result<std::unique_ptr<LocalPlace>> opened) {
    if (!opened.ok()) return report("failed", opened.error());
    tab().is_open = true;
    tab().model->use(*std::move(opened));
    tab().evicted.num_layers = tab().model->num_layers();
    report({{"opened", {{"num_layers", tab().model->num_layers()}}}});
    if (tab().model->is_whole()) tell_ready();
}

Status load(const std::string& manifest_sha256, const std::string& texts_sha256,
            LocalMemory memory) {
    MOEX_ASSIGN(files, TabFiles::open(manifest_sha256));
    LocalText words;
    MOEX_ASSIGN(manifest_hash, parse_sha256(manifest_sha256));
    MOEX_ASSIGN(texts_hash, parse_sha256(texts_sha256));
    words.manifest_sha256 = manifest_hash;
    words.texts_sha256 = texts_hash;
    MOEX_ASSIGN(tokenizer, files->text_file("tokenizer.json"));
    MOEX_ASSIGN(config, files->text_file("tokenizer_config.json"));
    words.tokenizer_json = std::move(tokenizer);
    words.tokenizer_config_json = std::move(config);
    words.generation = files->manifest().generation;
    tab().files = std::move(files);
    memory.evicted = &tab().evicted;
    MOEX_ASSIGN(model, LocalModel::create(words, tab().shelf));
    tab().model = std::move(model);
    open_place({.manifest_sha256 = manifest_sha256,
                .files = tab().files.get(),
                .memory = memory,
                .progress = tell_progress(),
                .on_lost = [](Error error) { report("failed", error); }},
               on_place);
    return {};
}

void give_page(Result<Bytes> page) {
    if (!page.ok()) return mx_page_read(nullptr, 0);
    mx_page_read(page->data(), static_cast<int>(page->size()));
}

// Returns the drafted tokens of an answer as the hub does (moex.speculative in hub/api); null if it
// had none.
Json drafts_json(const DraftCounts& drafts, std::uint32_t completion_tokens) {
    if (drafts.drafts == 0) return nullptr;
    const auto ratio = [](std::uint64_t part, std::uint64_t whole) {
        return static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(1, whole));
    };
    std::size_t length = drafts.accepted_histogram.size();
    while (length > 1 && drafts.accepted_histogram[length - 1] == 0) --length;
    Json histogram = Json::array();
    for (std::size_t i = 0; i < length; ++i) histogram.push_back(drafts.accepted_histogram[i]);
    return {{"mean_acceptance_length", 1 + ratio(drafts.accepted_tokens, drafts.drafts)},
            {"draft_acceptance_rate", ratio(drafts.accepted_tokens, drafts.drafted_tokens)},
            {"acceptance_histogram", std::move(histogram)},
            {"tokens_per_step", ratio(completion_tokens, drafts.steps)},
            {"kind", "ngram"}};
}

Json ended(const LocalEnd& end) {
    const char* const reason = end.how == AnswerEnd::length      ? "length"
                               : end.how == AnswerEnd::cancelled ? "cancelled"
                                                                 : "stop";
    return {{"ended",
             {{"finish_reason", reason},
              {"prompt_tokens", end.prompt_tokens},
              {"completion_tokens", end.completion_tokens},
              {"cached_tokens", end.cached_tokens},
              {"handed_tokens", end.handed_tokens},
              {"prompt_tokens_per_s", end.prompt_tokens_per_s},
              {"tokens_per_s", end.tokens_per_s},
              {"speculative", drafts_json(end.drafts, end.completion_tokens)}}}};
}

}  // namespace

extern "C" {

void mx_bind_heap();  // defined in bridge_library.js; gives it access to the WASM heap

EMSCRIPTEN_KEEPALIVE void mx_init() { mx_bind_heap(); }

// Loads a package. `hex`: the SHA-256 of the package's manifest, then that of its texts
// (LocalText), 64 digits each. `kv_share` and `memory_bytes`: see LocalMemory.
EMSCRIPTEN_KEEPALIVE void mx_local_open(const char* hex, std::uint32_t size_bytes,
                                        std::uint32_t context_tokens_max, std::uint32_t kv_share,
                                        double memory_bytes) {
    const std::string hashes(hex, size_bytes), manifest_sha256 = hashes.substr(0, size_bytes / 2),
                                               texts_sha256 = hashes.substr(size_bytes / 2);
    if (const Status loaded = load(manifest_sha256, texts_sha256,
                                   {.context_tokens_max = context_tokens_max,
                                    .kv_share = std::max(1u, kv_share),
                                    .bytes_max = static_cast<std::uint64_t>(memory_bytes)});
        !loaded.ok())
        report("failed", loaded.error());
}

// Loads the experts of a layer, whose files are open by now. Reports {"ready"} after the last one.
EMSCRIPTEN_KEEPALIVE void mx_local_layer(std::uint32_t layer) {
    if (!tab().open_model() || tab().model->is_whole()) return;
    if (const Status loaded = tab().model->load_layer(layer); !loaded.ok())
        return report("failed", loaded.error());
    if (tab().model->is_whole()) tell_ready();
}

// Answers the question `json` (local_question.h); only one answer at a time may run.
EMSCRIPTEN_KEEPALIVE void mx_local_ask(const char* json, std::uint32_t size_bytes) {
    const Json body = Json::parse(std::string_view(json, size_bytes), nullptr, false);
    if (!tab().open_model() || !body.is_object())
        return report("refused", {ErrorCode::internal, "the model is not loaded"});
    const LocalModel::Events events{.on_text =
                                        [](std::string_view text) {
                                            report({{"text", text}});
                                        },
                                    .on_end =
                                        [](Result<LocalEnd> end) {
                                            if (!end.ok()) return report("failed", end.error());
                                            report(ended(*end));
                                        },
                                    .on_early =
                                        [](std::uint32_t num_layers, std::uint32_t num_tokens) {
                                            report({{"early",
                                                     {{"layers", num_layers},
                                                      {"num_layers", tab().model->num_layers()},
                                                      {"tokens", num_tokens}}}});
                                        }};
    const Status asked = tab().model->ask(body, events);
    if (!asked.ok()) report("refused", asked.error());
}
EMSCRIPTEN_KEEPALIVE void mx_local_cancel() {
    if (tab().open_model()) tab().model->cancel();
}

// Takes a page that mx_find_pages() asked for. `bytes`: the SHA-256 of all tokens before the page,
// then the page; `is_hubs`: the hub computed it, and not this device. Returns 0 if it was refused,
// 1 if it was taken in part or not needed, 2 if the whole page was taken.
EMSCRIPTEN_KEEPALIVE int mx_on_page(const std::byte* bytes, std::uint32_t size_bytes, int is_hubs) {
    using Origin = PageShelf::Origin;
    Sha256 before{};
    const ByteView all(bytes, size_bytes);
    if (all.size() < before.size()) return 0;
    std::copy_n(all.begin(), before.size(), before.begin());
    return static_cast<int>(
        tab().shelf.take(is_hubs ? Origin::hub : Origin::here, before, all.subspan(before.size())));
}
// Answers mx_write_evicted() and mx_read_evicted().
EMSCRIPTEN_KEEPALIVE void mx_on_evicted(const std::byte* bytes, std::uint32_t size_bytes) {
    tab().evicted.answer({bytes, size_bytes});
}
EMSCRIPTEN_KEEPALIVE void mx_on_pages_end() { tab().shelf.end_of_pages(); }

// Returns the number of the prompt's tokens whose keys and values are on the GPU by now.
EMSCRIPTEN_KEEPALIVE std::uint32_t mx_held_tokens() {
    return tab().open_model() ? tab().model->num_held() : 0;
}

// Reports {"route": {"place", "is_measured", "seconds", "as_u8", "by_thresholds"}} during the call:
// where the answer to the present prompt is computed. `json`: the facts that JavaScript knows.
EMSCRIPTEN_KEEPALIVE void mx_route(const char* json, std::uint32_t size_bytes) {
    const Json asked = Json::parse(std::string_view(json, size_bytes), nullptr, false);
    RouteFacts facts;
    if (asked.is_object()) facts = read_route_facts(asked);
    if (tab().open_model()) tab().model->add_facts(facts);
    report({{"route", route_json(route(facts))}});
}

// Answers with mx_page_read(): a page of the present prompt, to be sent to the hub.
EMSCRIPTEN_KEEPALIVE void mx_read_held_page(const std::byte* before, std::uint32_t size_bytes,
                                            std::uint32_t index, std::uint32_t num_tokens,
                                            int as_u8) {
    Sha256 hash{};
    if (size_bytes != hash.size() || !tab().open_model()) return mx_page_read(nullptr, 0);
    std::copy_n(before, hash.size(), hash.begin());
    tab().model->read_held_page(index, num_tokens, as_u8 != 0, hash, give_page);
}

// Answers with mx_page_read(): a page, or the recurrent state at its end. `before`: the SHA-256 of
// all tokens before the page.
EMSCRIPTEN_KEEPALIVE void mx_read_page(const std::byte* before, std::uint32_t size_bytes,
                                       std::uint32_t turn, std::uint32_t index,
                                       std::uint32_t num_tokens, int is_state) {
    Sha256 hash{};
    if (size_bytes != hash.size() || !tab().open_model()) return mx_page_read(nullptr, 0);
    std::copy_n(before, hash.size(), hash.begin());
    tab().model->read_page(turn, index, num_tokens, is_state != 0, hash, give_page);
}

}  // extern "C"

}  // namespace moex
