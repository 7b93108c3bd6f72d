#include "hub/commands/gpu/gpu_model.h"

#include <algorithm>
#include <optional>

#include "hub/base/clock.h"
#include "hub/commands/gpu/gpu_device.h"
#include "hub/commands/gpu/load_decoder.h"
#include "web-worker/decoder/greedy_loop.h"

namespace moex {
namespace {

// Returns true if a request is greedy: it needs only the likeliest token of each step.
bool is_greedy(const GenerationRequest& request) {
    const SamplingOptions& sampling = request.sampling;
    return sampling.temperature == 0 && sampling.repetition_penalty == 1 &&
           sampling.presence_penalty == 0 && sampling.frequency_penalty == 0 &&
           sampling.logit_bias.empty() && !request.logprobs && !request.prompt_logprobs;
}

class VulkanModel : public GpuModel {
  public:
    Status open(const std::shared_ptr<const ModelPackage>& package,
                const GpuModelOptions& options) {
        options_ = options;
        MOEX_ASSIGN(device, open_gpu_device(options.device, loop_.poster()));
        device_ = std::move(device);
        MOEX_ASSIGN(model, decoder_model_of(*package));
        const GpuDecoderOptions decoder{.context_tokens = options.context_tokens,
                                        .kv_kind = kv_kind_of(options.kv_dtype)};
        const DecoderMemory::Needs needs = DecoderMemory::needs_of(
            model, decoder_sizes_of(device_->adapter(), model, decoder));
        MOEX_TRY(check_memory(device_->adapter(), needs, device_->adapter().memory_bytes));

        MOEX_ASSIGN(loaded,
                    load_decoder(*device_, loop_, package, model, decoder, options.progress));
        decoder_ = std::move(loaded);
        return {};
    }

    const std::string& adapter() const override { return device_->adapter().description; }
    std::uint32_t dispatches_per_token() const override { return decoder_->dispatches_of_a_step(); }

    GenerationEnd generate(const GenerationRequest& request,
                           const std::function<bool(const SampledToken&)>& on_token,
                           const std::stop_token& stop) override {
        decoder_->rewind(0);
        began_ = now_steady();
        first_token_.reset();
        end_ = {};
        end_.stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());

        const auto hear = [&](const SampledToken& token) {
            if (!first_token_) first_token_ = now_steady();
            ++end_.stats.completion_tokens;
            return on_token(token);
        };
        const Result<FinishReason> reason = is_greedy(request) ? greedy(request, hear, stop)
                                                               : sampled(request, hear, stop);
        if (reason.ok()) {
            end_.reason = *reason;
        } else {
            end_.reason = FinishReason::error;
            end_.error = reason.error();
        }
        const TimePoint now = now_steady();
        end_.stats.prefill = first_token_.value_or(now) - began_;
        end_.stats.decode = now - first_token_.value_or(now);
        return end_;
    }

  private:
    using Hear = std::function<bool(const SampledToken&)>;

    Result<FinishReason> greedy(const GenerationRequest& request, const Hear& hear,
                                const std::stop_token& stop) {
        std::optional<Result<AnswerEnd>> ended;
        bool finished = false;
        GreedyLoop* running = nullptr;
        GreedyLoop loop(*decoder_,
                        {.max_tokens = request.max_tokens,
                         .fetch_tokens = options_.fetch_tokens,
                         .stop_ids = request.stop_ids},
                        {.on_tokens =
                             [&](std::span<const std::uint32_t> ids) {
                                 for (const TokenId id : ids)
                                     if (!hear({.id = id})) return running->cancel();
                                 if (stop.stop_requested()) running->cancel();
                             },
                         .on_end =
                             [&](Result<AnswerEnd> how) {
                                 ended = std::move(how);
                                 finished = true;
                             }});
        running = &loop;
        loop.start(request.prompt);
        if (!finished) loop_.run_until(finished, device_.get());
        if (!ended->ok()) return ended->error();
        return **ended == AnswerEnd::stop     ? FinishReason::stop
               : **ended == AnswerEnd::length ? FinishReason::length
                                              : FinishReason::cancelled;
    }

    Result<FinishReason> sampled(const GenerationRequest& request, const Hear& hear,
                                 const std::stop_token& stop) {
        Sampler sampler(request.sampling, request.prompt);
        std::span<const TokenId> rest(request.prompt);
        while (rest.size() > decoder_->rows_max()) {
            MOEX_TRY(decoder_->feed(rest.first(decoder_->rows_max()), StepLogits::none));
            rest = rest.subspan(decoder_->rows_max());
        }

        TokenId last = 0;
        for (std::uint32_t count = 0; count < request.max_tokens; ++count) {
            if (stop.stop_requested()) return FinishReason::cancelled;
            MOEX_TRY(decoder_->feed(count == 0 ? rest : std::span(&last, 1), StepLogits::last));
            MOEX_ASSIGN(token, sample(sampler, request));
            const auto& stops = request.stop_ids;
            if (std::find(stops.begin(), stops.end(), token.id) != stops.end())
                return FinishReason::stop;
            last = token.id;
            sampler.accept(last);
            if (!hear(token)) return FinishReason::cancelled;
        }
        return FinishReason::length;
    }

    Result<SampledToken> sample(Sampler& sampler, const GenerationRequest& request) {
        bool finished = false;
        Result<SampledToken> token = Error{ErrorCode::internal, "no logits"};
        decoder_->read_logits([&](Result<std::span<const float>> logits) {
            finished = true;
            if (logits.ok())
                token = moex::sample(sampler, *logits, request.top_logprobs);
            else
                token = logits.error();
        });
        loop_.run_until(finished, device_.get());
        return token;
    }

    GpuModelOptions options_;
    gpu::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;
    std::unique_ptr<GpuDecoder> decoder_;
    TimePoint began_;
    std::optional<TimePoint> first_token_;
    GenerationEnd end_;
};

}  // namespace

Result<std::unique_ptr<GpuModel>> open_gpu_model(std::shared_ptr<const ModelPackage> package,
                                                 const GpuModelOptions& options) {
    auto model = std::make_unique<VulkanModel>();
    MOEX_TRY(model->open(package, options));
    return std::unique_ptr<GpuModel>(std::move(model));
}

}  // namespace moex
