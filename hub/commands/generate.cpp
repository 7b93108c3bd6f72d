// moex-hub generate: one generation on this machine; the text
// goes to stdout as it comes, everything else to stderr.
#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <random>

#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/signals.h"

namespace moex {
namespace {

Result<std::vector<TokenId>> read_ids(const std::string& path) {
    std::string content;
    if (path == "-") {
        content.assign(std::istreambuf_iterator<char>(std::cin), {});
    } else {
        std::ifstream file(path, std::ios::binary);
        if (!file) return Error{ErrorCode::io_error, text(path, ": cannot be read")};
        content.assign(std::istreambuf_iterator<char>(file), {});
    }
    std::vector<TokenId> ids;
    const char* at = content.data();
    const char* const end = at + content.size();
    while (true) {
        while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t' ||
                             *at == ',' || *at == '[' || *at == ']'))
            ++at;
        if (at == end) break;
        TokenId id = 0;
        const auto [next, failure] = std::from_chars(at, end, id);
        if (failure != std::errc())
            return Error{ErrorCode::bad_file,
                         text(path, ": byte ", at - content.data(),
                              ": wanted token ids separated by blanks or commas")};
        ids.push_back(id);
        at = next;
    }
    if (ids.empty()) return Error{ErrorCode::bad_file, text(path, ": holds no token ids")};
    return ids;
}

// From the engine's thread to ours.
struct Mailbox {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<SampledToken> tokens;
    std::optional<GenerationEnd> end;
};

}  // namespace

int run_generate(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    const std::string* prompt = invocation.argument("--prompt");
    const std::string* ids_path = invocation.argument("--prompt-ids");
    if (!prompt == !ids_path) {
        fail("generate wants either --prompt TEXT or --prompt-ids FILE");
        return exit_wrong_arguments;
    }
    const bool is_chat = invocation.argument("--chat") != nullptr;
    if (is_chat && !prompt) {
        fail("--chat needs --prompt");
        return exit_wrong_arguments;
    }
    set_log_of(settings);

    std::mutex running_mutex;  // of what the signal thread needs
    Engine* running_engine = nullptr;
    GenerationId running_id = 0;
    int interrupted_by = 0;
    SignalWatcher signals([&](int count, int number) {
        if (count > 1) std::_Exit(exit_signal + number);
        const std::lock_guard lock(running_mutex);
        interrupted_by = number;
        if (running_engine) running_engine->cancel(running_id);
    });

    auto model = load_model(
        settings, [](std::string_view) {}, invocation.check_only);
    if (!model.ok()) return fail(model.error().message);
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; generate computes on this machine"));

    GenerationRequest request;
    if (ids_path) {
        auto ids = read_ids(*ids_path);
        if (!ids.ok()) return fail(ids.error().message);
        request.prompt = *std::move(ids);
    } else if (!model->tokenizer) {
        return fail("the package has no tokenizer; use --prompt-ids");
    } else if (is_chat) {
        if (!model->chat_template)
            return fail("the package has no chat template; leave --chat out");
        const auto messages = nlohmann::ordered_json::array(
            {{{"role", "user"}, {"content", *prompt}}});
        auto ids = model->chat_template->render_ids(messages, {{"add_generation_prompt", true}},
                                                    *model->tokenizer);
        if (!ids.ok()) return fail(text("chat template: ", ids.error().message));
        request.prompt = *std::move(ids);
    } else {
        request.prompt = model->tokenizer->encode_prompt(*prompt);
    }
    const GenerationDefaults& defaults = model->package->generation_defaults();
    SamplingOptions& sampling = request.sampling;
    sampling.temperature = settings.text("temperature").empty()
                               ? (defaults.do_sample ? defaults.temperature : 0)
                               : std::stod(settings.text("temperature"));
    sampling.top_p = settings.text("top-p").empty() ? defaults.top_p
                                                    : std::stod(settings.text("top-p"));
    sampling.sample_top_k = defaults.sample_top_k;
    sampling.min_p = defaults.min_p;
    sampling.repetition_penalty = defaults.repetition_penalty;
    sampling.seed = settings.text("seed").empty() ? std::random_device{}()
                                                  : std::stoull(settings.text("seed"));
    request.max_tokens = static_cast<std::uint32_t>(settings.number("max-tokens"));
    request.stop_ids.assign(defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
    const bool margins = invocation.argument("--margins") != nullptr;
    request.logprobs = margins;
    request.top_logprobs = margins ? 2 : 0;
    if (const std::uint64_t context = settings.number("context"); context > 0) {
        if (request.prompt.size() >= context)
            return fail(
                text("the prompt has ", request.prompt.size(), " tokens, --context is ", context));
        request.max_tokens = std::min<std::uint32_t>(
            request.max_tokens, static_cast<std::uint32_t>(context - request.prompt.size()));
    }

    EngineOptions engine_options = engine_options_of(settings);
    engine_options.sequences_max = 1;
    Engine engine(*model->decoder, *model->local, engine_options);
    Mailbox mailbox;
    const auto id = engine.submit(std::move(request),
                                  {.on_token =
                                       [&](const TokenEvent& event) {
                                           const std::lock_guard lock(mailbox.mutex);
                                           mailbox.tokens.push_back(event.token);
                                           mailbox.wake.notify_one();
                                       },
                                   .on_end =
                                       [&](const GenerationEnd& end) {
                                           const std::lock_guard lock(mailbox.mutex);
                                           mailbox.end = end;
                                           mailbox.wake.notify_one();
                                       }});
    if (!id.ok()) return fail(id.error().message);
    {
        const std::lock_guard lock(running_mutex);
        running_engine = &engine;
        running_id = *id;
        if (interrupted_by != 0) engine.cancel(*id);
    }

    std::optional<StreamDecoder> decoder;
    if (model->tokenizer) decoder.emplace(*model->tokenizer);
    float margin_min = std::numeric_limits<float>::infinity();
    std::uint32_t num_tokens = 0;
    const auto put = [&](const std::string& piece) {
        // the reader left
        if (std::fwrite(piece.data(), 1, piece.size(), stdout) != piece.size() ||
            std::fflush(stdout) != 0)
            engine.cancel(*id);
    };
    std::optional<GenerationEnd> end;
    while (!end) {
        std::deque<SampledToken> tokens;
        {
            std::unique_lock lock(mailbox.mutex);
            mailbox.wake.wait(lock, [&] { return !mailbox.tokens.empty() || mailbox.end; });
            tokens.swap(mailbox.tokens);
            end = mailbox.end;
        }
        for (const SampledToken& token : tokens) {
            if (margins && token.top.size() == 2)
                margin_min = std::min(margin_min, token.top[0].logprob - token.top[1].logprob);
            put(decoder ? decoder->push(token.id) : text(num_tokens > 0 ? " " : "", token.id));
            ++num_tokens;
        }
    }
    if (decoder) put(decoder->finish());
    {
        const std::lock_guard lock(running_mutex);
        running_engine = nullptr;
        if (end->reason == FinishReason::cancelled && interrupted_by != 0)
            return exit_signal + interrupted_by;
    }
    if (margins)
        std::fprintf(stderr, "margin_min=%.6f tokens=%u\n", static_cast<double>(margin_min),
                     num_tokens);
    if (end->reason == FinishReason::error) return fail(end->error.message);
    return exit_stopped;
}

}  // namespace moex
