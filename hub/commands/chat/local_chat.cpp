#include <mutex>

#include "hub/commands/chat/chat_source.h"
#include "hub/commands/chat/generation.h"
#include "hub/commands/load_model.h"

namespace moex {
namespace {

// Tokens of an answer at most, unless --max-tokens says otherwise.
constexpr std::uint32_t answer_tokens_default = 4096;

class LocalChat : public ChatSource {
  public:
    LocalChat(LoadedModel model, const Settings& settings)
        : model_(std::move(model)),
          settings_(settings) {
        EngineOptions options = engine_options_of(settings, model_);
        options.sequences_max = 1;
        engine_ = std::make_unique<Engine>(*model_.decoder, *model_.local, options);
    }

    std::string model_name() const override { return model_.package->name(); }

    Result<ChatAnswer> answer(const nlohmann::ordered_json& messages,
                              const OnText& on_text) override {
        MOEX_ASSIGN(request, request_of(messages));
        TokenMailbox mailbox;  // outlives the generation, which writes tokens to it
        const auto id = engine_->submit(std::move(request), mailbox.sink());
        if (!id.ok()) return id.error();
        {
            const std::lock_guard lock(mutex_);
            running_ = *id;
        }

        StreamDecoder text(*model_.tokenizer);
        std::optional<GenerationEnd> end;
        while (!end)
            for (const SampledToken& token : mailbox.take(end))
                if (!on_text(text.push(token.id))) engine_->cancel(*id);
        {
            const std::lock_guard lock(mutex_);
            running_.reset();
        }
        (void)on_text(text.finish());
        if (end->reason == FinishReason::error) return end->error;
        return ChatAnswer{.num_tokens = end->stats.completion_tokens,
                          .seconds = to_ms(end->stats.decode) / 1e3,
                          .is_stopped = end->reason == FinishReason::cancelled,
                          .is_cut = end->reason == FinishReason::length};
    }

    void stop() override {
        const std::lock_guard lock(mutex_);
        if (running_) engine_->cancel(*running_);
    }

  private:
    Result<GenerationRequest> request_of(const nlohmann::ordered_json& messages) const {
        auto ids = model_.chat_template->render_ids(messages, {{"add_generation_prompt", true}},
                                                    *model_.tokenizer);
        if (!ids.ok()) return Error{ids.error().code, text("chat template: ", ids.error().message)};

        const std::uint64_t asked = settings_.number("context"),
                            has = model_.package->config().context_tokens;
        const std::uint64_t context = asked == 0 ? has : std::min(asked, has);
        if (ids->size() >= context)
            return Error{ErrorCode::invalid_argument,
                         text("the conversation has ", ids->size(), " tokens, and the model takes ",
                              context, "; /new begins another one")};

        const GenerationDefaults& defaults = model_.package->generation_defaults();
        GenerationRequest request;
        request.prompt = std::move(*ids);
        request.sampling = sampling_of(settings_, defaults);
        const std::uint64_t wanted = settings_.given("max-tokens") ? settings_.number("max-tokens")
                                                                   : answer_tokens_default;
        request.max_tokens = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(wanted, context - request.prompt.size()));
        request.stop_ids.assign(defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
        return request;
    }

    LoadedModel model_;
    const Settings& settings_;
    std::unique_ptr<Engine> engine_;
    std::mutex mutex_;
    std::optional<GenerationId> running_;  // the generation that stop() cancels
};

}  // namespace

Result<std::unique_ptr<ChatSource>> open_local_chat(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    if (settings.text("gpu") != "off")
        return Error{ErrorCode::invalid_argument,
                     "chat computes on the processor; with a GPU run `moex-hub serve --gpu auto` "
                     "and `moex-hub chat --url http://127.0.0.1:8080`"};
    MOEX_ASSIGN(model, load_model(settings, [](std::string_view) {}));
    MOEX_TRY(model.package->require_all_blobs());
    if (!model.tokenizer || !model.chat_template)
        return Error{ErrorCode::unsupported, text(model.package->name(), " has no ",
                                                  model.tokenizer ? "chat template" : "tokenizer",
                                                  "; `moex-hub generate` continues a text")};
    return std::unique_ptr<ChatSource>(std::make_unique<LocalChat>(std::move(model), settings));
}

}  // namespace moex
