// moex-hub generate: runs one generation on this machine. The text is printed to stdout while it is
// generated, and everything else to stderr.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>

#include "hub/base/log.h"
#include "hub/commands/chat/generation.h"
#include "hub/commands/command.h"
#include "hub/commands/gpu/gpu_model.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/progress.h"
#include "hub/commands/signals.h"

namespace moex {
namespace {

Result<std::vector<TokenId>> parse_ids(std::string_view content, std::string_view path) {
    const auto separates = [](char c) {
        return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == '[' || c == ']';
    };
    const char* at = content.data();
    const char* const end = at + content.size();

    std::vector<TokenId> ids;
    while (true) {
        while (at != end && separates(*at)) ++at;
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

Result<std::vector<TokenId>> read_ids(const std::string& path) {
    std::string content;
    if (path == "-") {
        content.assign(std::istreambuf_iterator<char>(std::cin), {});
    } else {
        std::ifstream file(path, std::ios::binary);
        if (!file) return Error{ErrorCode::io_error, text(path, ": cannot be read")};
        content.assign(std::istreambuf_iterator<char>(file), {});
    }
    return parse_ids(content, path);
}

Result<std::vector<TokenId>> prompt_ids(const Invocation& invocation, const LoadedModel& model) {
    if (const std::string* path = invocation.argument("--prompt-ids")) return read_ids(*path);

    const std::string& prompt = *invocation.argument("--prompt");
    if (!model.tokenizer)
        return Error{ErrorCode::unsupported, "the package has no tokenizer; use --prompt-ids"};
    if (!invocation.argument("--chat")) return model.tokenizer->encode_prompt(prompt);

    if (!model.chat_template)
        return Error{ErrorCode::unsupported, "the package has no chat template; leave --chat out"};
    const auto messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", prompt}}});
    auto ids = model.chat_template->render_ids(messages, {{"add_generation_prompt", true}},
                                               *model.tokenizer);
    if (!ids.ok()) return Error{ids.error().code, text("chat template: ", ids.error().message)};
    return ids;
}

Result<GenerationRequest> request_of(const Invocation& invocation, const LoadedModel& model) {
    const Settings& settings = invocation.settings;
    const GenerationDefaults& defaults = model.package->generation_defaults();

    GenerationRequest request;
    MOEX_ASSIGN(prompt, prompt_ids(invocation, model));
    request.prompt = std::move(prompt);
    request.sampling = sampling_of(settings, defaults);
    request.max_tokens = static_cast<std::uint32_t>(settings.number("max-tokens"));
    request.stop_ids.assign(defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());

    // --margins needs log-probabilities: a margin is the gap between those of the two likeliest
    // tokens.
    request.logprobs = invocation.argument("--margins") != nullptr;
    request.top_logprobs = request.logprobs ? 2 : 0;

    const std::uint64_t context = settings.number("context");
    if (context == 0) return request;
    if (request.prompt.size() >= context)
        return Error{ErrorCode::invalid_argument, text("the prompt has ", request.prompt.size(),
                                                       " tokens, --context is ", context)};
    request.max_tokens = std::min<std::uint32_t>(
        request.max_tokens, static_cast<std::uint32_t>(context - request.prompt.size()));
    return request;
}

// Handles Ctrl-C. The first one cancels the generation, so that the tokens generated so far are
// printed. The second one ends the process.
class Interruption {
  public:
    Interruption()
        : signals_([this](int count, int number) {
              if (count > 1) std::_Exit(exit_signal + number);
              const std::lock_guard lock(mutex_);
              number_ = number;
              if (cancel_) cancel_();
          }) {}

    // From now on a signal calls `cancel`, on the thread that waits for signals.
    void watch(std::function<void()> cancel) {
        const std::lock_guard lock(mutex_);
        cancel_ = std::move(cancel);
        if (number_ != 0) cancel_();
    }
    // Stops calling `cancel` on signals. Returns the number of the signal that arrived, or 0.
    int release() {
        const std::lock_guard lock(mutex_);
        cancel_ = {};
        return number_;
    }

  private:
    std::mutex mutex_;
    std::function<void()> cancel_;
    int number_ = 0;
    SignalWatcher signals_;  // the last member, because its thread uses the members above
};

TextBegin begin_of_answer(const Invocation& invocation) {
    return invocation.argument("--chat") ? TextBegin::here : TextBegin::earlier;
}

// Prints tokens to stdout as text, or as ids if the package has no tokenizer.
class TokenPrinter {
  public:
    // `begin`: whether the answer continues the prompt's text or is a text of its own.
    TokenPrinter(const Tokenizer* tokenizer, TextBegin begin) {
        if (tokenizer) decoder_.emplace(*tokenizer, true, begin);
    }

    // Prints one token. Returns false if the reader of stdout has closed it.
    bool print(const SampledToken& token) {
        if (token.top.size() == 2)
            margin_min_ = std::min(margin_min_, token.top[0].logprob - token.top[1].logprob);

        const char* const separator = num_tokens_ > 0 ? " " : "";
        ++num_tokens_;
        return print_now(decoder_ ? decoder_->push(token.id) : text(separator, token.id));
    }
    void finish() {
        if (decoder_) (void)print_now(decoder_->finish());
    }
    void report_margin() const {
        std::fprintf(stderr, "margin_min=%.6f tokens=%u\n", static_cast<double>(margin_min_),
                     num_tokens_);
    }

  private:
    std::optional<StreamDecoder> decoder_;
    float margin_min_ = std::numeric_limits<float>::infinity();
    std::uint32_t num_tokens_ = 0;
};

// Prints the summary of the generation, and returns the exit code. `signal` is the number of the
// signal that arrived, or 0.
int finish(const Invocation& invocation, TokenPrinter& printer, const GenerationEnd& end,
           int signal) {
    printer.finish();
    if (end.reason == FinishReason::cancelled && signal != 0) return exit_signal + signal;
    if (invocation.argument("--margins")) printer.report_margin();
    if (end.reason == FinishReason::error) return fail(end.error.message);
    return exit_stopped;
}

int generate(const Invocation& invocation, const LoadedModel& model, GenerationRequest request,
             Interruption& interruption) {
    EngineOptions engine_options = engine_options_of(invocation.settings, model);
    engine_options.sequences_max = 1;

    TokenMailbox mailbox;  // outlives the engine, which writes tokens to it
    Engine engine(*model.decoder, *model.local, engine_options);
    const auto id = engine.submit(std::move(request), mailbox.sink());
    if (!id.ok()) return fail(id.error().message);
    interruption.watch([&engine, id = *id] { engine.cancel(id); });

    TokenPrinter printer(model.tokenizer.get(), begin_of_answer(invocation));
    std::optional<GenerationEnd> end;
    while (!end)
        for (const SampledToken& token : mailbox.take(end))
            if (!printer.print(token)) engine.cancel(*id);
    return finish(invocation, printer, *end, interruption.release());
}

// Generates the whole answer on a GPU of this machine.
int generate(const Invocation& invocation, const LoadedModel& model, GpuModel& gpu,
             const GenerationRequest& request, Interruption& interruption) {
    std::stop_source stop;
    interruption.watch([&stop] { stop.request_stop(); });

    TokenPrinter printer(model.tokenizer.get(), begin_of_answer(invocation));
    const GenerationEnd end = gpu.generate(
        request, [&](const SampledToken& token) { return printer.print(token); }, stop.get_token());
    const int code = finish(invocation, printer, end, interruption.release());

    const std::uint32_t num_later = std::max(end.stats.completion_tokens, 1u) - 1;
    log_info("gpu: done", kv("adapter", gpu.adapter()), kv("prompt", end.stats.prompt_tokens),
             kv("prompt_ms", to_ms(end.stats.prefill)), kv("tokens", end.stats.completion_tokens),
             kv("ms_per_token", num_later ? to_ms(end.stats.decode) / num_later : 0),
             kv("dispatches_per_token", gpu.dispatches_per_token()));
    return code;
}

// Opens the GPU. Returns null if the settings keep the model on the CPU, or if "auto" finds no GPU.
Result<std::unique_ptr<GpuModel>> open_gpu(const Invocation& invocation, const LoadedModel& model,
                                           const GenerationRequest& request) {
    const std::string& wanted = invocation.settings.text("gpu");
    if (wanted == "off") return std::unique_ptr<GpuModel>();

    GpuModelOptions options;
    options.device = wanted;
    options.context_tokens = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(model.package->config().context_tokens,
                                std::uint64_t{request.max_tokens} + request.prompt.size()));
    options.kv_dtype = parse_kv_dtype(invocation.settings.text("kv-dtype")).value_or(KvDtype::f32);
    ProgressBar bar("to the GPU", false);
    options.progress = [&](std::uint64_t done, std::uint64_t all) { bar.show(done, all, ""); };
    auto gpu = open_gpu_model(model.package, options);
    if (gpu.ok() || wanted != "auto" || gpu.error().code != ErrorCode::unavailable) return gpu;
    log_info("gpu: the CPU computes", kv("because", gpu.error().message));
    return std::unique_ptr<GpuModel>();
}

}  // namespace

int run_generate(const Invocation& invocation) {
    const bool has_prompt = invocation.argument("--prompt") != nullptr;
    const bool has_ids = invocation.argument("--prompt-ids") != nullptr;
    if (has_prompt == has_ids) {
        fail("generate wants either --prompt TEXT or --prompt-ids FILE");
        return exit_wrong_arguments;
    }
    if (invocation.argument("--chat") && !has_prompt) {
        fail("--chat needs --prompt");
        return exit_wrong_arguments;
    }

    set_log_of(invocation.settings);
    // made before any other thread, because threads inherit blocked signals
    Interruption interruption;
    // Load the CPU's copy of the matrices only once it is clear that no GPU computes.
    const bool texts_only = invocation.check_only || invocation.settings.text("gpu") != "off";
    auto model = load_model(
        invocation.settings, [](std::string_view) {},
        texts_only ? LoadParts::texts : LoadParts::everything);
    if (!model.ok()) return fail(model.error().message);
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; generate computes on this machine"));

    auto request = request_of(invocation, *model);
    if (!request.ok()) return fail(request.error().message);
    auto gpu = open_gpu(invocation, *model, *request);
    if (!gpu.ok()) return fail(gpu.error().message);
    if (*gpu) return generate(invocation, *model, **gpu, *request, interruption);

    if (!model->decoder) {
        model = load_model(invocation.settings, [](std::string_view) {});
        if (!model.ok()) return fail(model.error().message);
    }
    return generate(invocation, *model, *std::move(request), interruption);
}

}  // namespace moex
