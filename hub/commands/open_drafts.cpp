#include "hub/commands/open_drafts.h"

#include <algorithm>
#include <filesystem>

#include "hub/commands/open_shadow.h"
#include "hub/foresight/shadow/shadow_experts.h"
#include "hub/model/package/draft_head.h"

namespace moex {
namespace {

// Returns an error if a token has another text in the draft model than in the target.
Status check_vocabulary(const ModelPackage& draft, const LoadedModel& model) {
    const std::uint32_t wanted = model.package->config().vocab_size,
                        found = draft.config().vocab_size;
    if (found != wanted)
        return Error{ErrorCode::invalid_argument,
                     text("the draft model ", draft.name(), " has a vocabulary of ", found,
                          " tokens, ", model.package->name(), " has ", wanted)};
    const auto file = draft.tokenizer_file("tokenizer.json");
    if (!file || !model.tokenizer) return {};
    const auto config = draft.tokenizer_file("tokenizer_config.json");
    MOEX_ASSIGN(tokenizer, Tokenizer::load(*file, config.value_or("")));
    for (TokenId id = 0; id < wanted; ++id)
        if (tokenizer->token_bytes(id) != model.tokenizer->token_bytes(id))
            return Error{
                ErrorCode::invalid_argument,
                text("the draft model ", draft.name(), " has another vocabulary than ",
                     model.package->name(), ": token ", id, " is \"", tokenizer->token_bytes(id),
                     "\", not \"", model.tokenizer->token_bytes(id), "\"")};
    return {};
}

}  // namespace

Status DraftParts::open(const std::string& folder, const LoadedModel& model,
                        const std::function<void(const Error&)>& on_changed_bytes) {
    is_shadow_ = std::filesystem::exists(std::filesystem::path(folder) / "shadow.json");
    MOEX_TRY(is_shadow_ ? open_shadow(folder, model)
                        : open_package(folder, model, on_changed_bytes));
    folder_ = folder;
    return {};
}

Status DraftParts::open_shadow(const std::string& folder, const LoadedModel& model) {
    if (!model.decoder)
        return Error{ErrorCode::invalid_argument,
                     "a shadow uses the model's attention on this machine's cores, and --gpu runs "
                     "it on a GPU: leave --gpu out, or give a package of its own"};
    MOEX_TRY(require_keys_only(model.package->config(), folder));
    MOEX_ASSIGN(package, ShadowPackage::open(folder, *model.package));
    experts_ = std::make_unique<ShadowExperts>(package, *model.threads);
    decoder_ = model.decoder->twin(*model.threads);
    return {};
}

Status DraftParts::open_package(const std::string& folder, const LoadedModel& model,
                                const std::function<void(const Error&)>& on_changed_bytes) {
    MOEX_ASSIGN(package, ModelPackage::open(folder));
    package->on_changed_bytes(on_changed_bytes);
    MOEX_TRY(require_keys_only(package->config(), folder));
    MOEX_TRY(check_vocabulary(*package, model));
    MOEX_TRY(package->require_all_blobs());
    // A draft needs no exact arithmetic, and the fastest one makes the most drafts.
    const Arithmetic arithmetic = has_codes(package->expert_dtype()) ? Arithmetic::int8
                                                                     : Arithmetic::exact;
    MOEX_ASSIGN(decoder, Decoder::create(package, *model.threads, {.arithmetic = arithmetic}));
    decoder_ = std::move(decoder);
    experts_ = std::make_unique<LocalExperts>(package, *model.threads, ExpertRounding{},
                                              arithmetic);
    return {};
}

Status DraftParts::open_head(const LoadedModel& model,
                             const std::function<void(const Error&)>& on_changed_bytes) {
    const auto opened = open_draft_head(*model.package);
    if (!opened.ok() && opened.error().code == ErrorCode::not_found) return {};
    MOEX_ASSIGN(package, opened);
    package->on_changed_bytes(on_changed_bytes);
    MOEX_TRY(package->require_all_blobs());
    auto decoder = model.decoder ? model.decoder->draft_head(package, *model.threads)
                                 : Decoder::draft_head_of(model.package, package, *model.threads,
                                                          {.arithmetic = model.arithmetic,
                                                           .hub_dtype = model.hub_dtype});
    MOEX_ASSIGN(head, std::move(decoder));
    head_ = std::move(head);
    const bool has_int4 = has_codes(package->expert_dtype());
    head_experts_ = std::make_unique<LocalExperts>(package, *model.threads, ExpertRounding{},
                                                   has_int4 ? model.arithmetic : Arithmetic::exact);
    return {};
}

namespace {

// Returns the options of a draft's own cache. Its pages take memory only once they are used, and a
// draft has at most the tokens of its target.
KvCacheOptions cache_of_draft(const Decoder& decoder, const EngineOptions& options, KvDtype dtype) {
    KvCacheOptions kv{.page_tokens = options.page_tokens, .dtype = dtype};
    const KvCache probe(decoder.config(), kv);
    constexpr std::uint64_t pages_most = 1u << 20;
    kv.num_pages = static_cast<std::uint32_t>(
        std::min(options.kv_bytes_max / probe.page_bytes(), pages_most));
    return kv;
}

}  // namespace

std::vector<DraftSource*> DraftParts::make_sources(const EngineOptions& options) {
    std::vector<DraftSource*> sources{&forms_, &ngrams_};
    if (head_) {
        head_drafts_.emplace(
            *head_, *head_experts_,
            HeadDraftOptions{.kv = cache_of_draft(*head_, options, options.kv_dtype)});
        sources.push_back(&*head_drafts_);
    }
    if (!decoder_) return sources;
    const KvCacheOptions kv = cache_of_draft(*decoder_, options,
                                             is_shadow_ ? options.kv_dtype : KvDtype::f16);
    model_drafts_.emplace(
        *decoder_, *experts_,
        ModelDraftOptions{
            .name = is_shadow_ ? "shadow" : folder_, .kv = kv, .copies_keys = is_shadow_});
    sources.push_back(&*model_drafts_);
    return sources;
}

std::string DraftParts::words() const {
    std::string words = text(forms_.name(), ", ", ngrams_.name());
    if (head_drafts_) words += text(", ", head_drafts_->name());
    return folder_.empty() ? words : text(words, ", ", folder_);
}

}  // namespace moex
