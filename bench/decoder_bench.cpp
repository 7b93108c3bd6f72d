// A whole model on one GPU, with random weights: how long a token takes, and where the time goes.
//   decoder_bench [--device NAME] [--shapes NAME,...|all] [--weights int4|bf16|f32|mixed,...]
//                 [--fetch I,...] [--tokens N] [--context N] [--prompt N] [--kernels on|off]
//                 [--kv f32|f16|u8]
// CSV: what, shape, weights, fetch, tokens, ms_token, tok_s, prep_ms, exec_ms, utilisation,
// dispatches, mb, gb_s.
//   sequential  a token is read before the next step is issued (fetch 1, nothing under way)
//   pipeline    steps are issued ahead, `fetch` tokens are read at once
//   prefill     a prompt of --prompt tokens; ms_token is of one of them
//   kernel NAME all dispatches of one kernel in a step at the context's middle: exec_ms of them
// prep_ms is the time in which the host issues a step, exec_ms the GPU's for one (a slope: a step's
// commands, once and several times in one submission). utilisation is exec_ms / ms_token; mb the
// weights that a token reads, and gb_s what that comes to in exec_ms.
// weights: int4 is everything in groups of 32; bf16 and f32 everything; mixed is a package's: bf16
// and, for experts, INT4. Every cell of one shape takes its turn before the next shape.
// A software rasteriser is asked for less: it shows that the program works.
// example: decoder_bench --shapes qwen2-1.5b,qwen3-30b-a3b --weights int4 --fetch 1,8,32
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "tests/support/posted_loop.h"
#include "web-worker/decoder/greedy_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point started) {
    return std::chrono::duration<double, std::milli>(Clock::now() - started).count();
}

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "decoder_bench: %s\n", what.c_str());
    std::exit(1);
}
template <class Value>
Value must(Result<Value> result) {
    if (!result.ok()) fail(result.error().message);
    return std::move(*result);
}
void must(const Status& status) {
    if (!status.ok()) fail(status.error().message);
}

struct Shape {
    const char* name;
    std::uint32_t hidden_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size,
        intermediate_size, num_experts, top_k;
    bool tied, qkv_bias, qk_norm;
};
constexpr Shape shapes[] = {
    {"demo", 384, 8, 6, 2, 64, 8192, 256, 16, 4, true, false, true},
    {"smollm-135m", 576, 30, 9, 3, 64, 49152, 1536, 0, 0, true, false, false},
    {"qwen2-0.5b", 896, 24, 14, 2, 64, 151936, 4864, 0, 0, true, true, false},
    {"tinyllama-1.1b", 2048, 22, 32, 4, 64, 32000, 5632, 0, 0, false, false, false},
    {"qwen2-1.5b", 1536, 28, 12, 2, 128, 151936, 8960, 0, 0, true, true, false},
    {"llama3-8b", 4096, 32, 32, 8, 128, 128256, 14336, 0, 0, false, false, false},
    {"qwen3-30b-a3b", 2048, 48, 32, 4, 128, 151936, 768, 128, 8, false, false, true},
};

DecoderModel model_of(const Shape& shape, const std::string& weights, std::uint32_t context) {
    DecoderModel model;
    model.hidden_size = shape.hidden_size;
    model.num_layers = shape.num_layers;
    model.num_heads = shape.num_heads;
    model.num_kv_heads = shape.num_kv_heads;
    model.head_dim = shape.head_dim;
    model.vocab_size = shape.vocab_size;
    model.context_tokens = context;
    model.num_experts = shape.num_experts;
    model.top_k = shape.top_k;
    model.moe_intermediate_size = model.intermediate_size = shape.intermediate_size;
    model.layer_is_moe.assign(shape.num_layers, shape.num_experts > 0);
    model.norm_topk_prob = true;
    model.qk_norm = shape.qk_norm;
    model.qkv_bias = shape.qkv_bias;
    model.tied_embeddings = shape.tied;

    const WeightKind kind = weights == "int4"  ? WeightKind::int4
                            : weights == "f32" ? WeightKind::f32
                                               : WeightKind::bf16;
    model.table_kind = model.attention_kind = model.dense_kind = model.expert_kind = kind;
    // A router's rows are few and its errors dear: nobody rounds it to 4 bits.
    model.router_kind = kind == WeightKind::int4 ? WeightKind::bf16 : kind;
    model.group_size = 32;
    if (weights == "mixed") {
        model.expert_kind = WeightKind::int4;
        model.group_size = 128;
    }
    return model;
}

// What a token reads of the weights, in bytes.
std::uint64_t bytes_of_a_token(const DecoderModel& model) {
    const auto matrix = [&](WeightKind kind, std::uint32_t out, std::uint32_t in) {
        return matrix_layout(kind, out, in, model.group_size).size_bytes;
    };
    std::uint64_t bytes = matrix(model.table_kind, model.vocab_size, model.hidden_size);
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        bytes += matrix(model.attention_kind, model.qkv_size(), model.hidden_size) +
                 matrix(model.attention_kind, model.hidden_size, model.q_size());
        const std::uint64_t blob = expert_blob_layout(model.ffn_shape(layer),
                                                      expert_dtype_of(model.ffn_kind(layer)))
                                       .size_bytes;
        bytes += model.is_moe(layer)
                     ? model.top_k * blob +
                           matrix(model.router_kind, model.num_experts, model.hidden_size)
                     : blob;
    }
    return bytes;
}

// Weights of a sane size, the same few megabytes over and over.
class RandomWeights : public WeightSource {
  public:
    explicit RandomWeights(const DecoderModel& model) : model_(model) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0, 0.02f);
        floats_.resize(1u << 20);
        for (float& value : floats_) value = normal(random);
        halves_.resize(floats_.size());
        codes_.resize(floats_.size());
        for (std::size_t i = 0; i < floats_.size(); ++i) {
            halves_[i] = float_to_bfloat16(floats_[i]);
            codes_[i] = static_cast<std::uint32_t>(random());
        }
        scales_.assign(floats_.size(), pack_scale_zero(float_to_half(0.005f), float_to_half(7.5f)));
        ones_.assign(1u << 16, 1.0f);
    }

    Status read(const WeightPart& part, const std::function<void(ByteView)>& append) override {
        using Name = WeightPart::Name;
        const std::uint32_t hidden = model_.hidden_size;
        const auto ones = [&](std::uint64_t size) { give(ones_, 4 * size, append); };
        switch (part.name) {
            case Name::embedding_rows:
            case Name::head_rows: matrix(model_.table_kind, part.num_rows, hidden, append); break;
            case Name::qkv: matrix(model_.attention_kind, model_.qkv_size(), hidden, append); break;
            case Name::o: matrix(model_.attention_kind, hidden, model_.q_size(), append); break;
            case Name::router:
                matrix(model_.router_kind, model_.num_experts, hidden, append);
                break;
            case Name::ffn: ffn(part.layer, append); break;
            case Name::q_norm:
            case Name::k_norm: ones(model_.head_dim); break;
            case Name::qkv_bias: ones(model_.qkv_size()); break;
            default: ones(hidden);
        }
        return {};
    }

  private:
    using Append = std::function<void(ByteView)>;
    template <class Value>
    static void give(const std::vector<Value>& from, std::uint64_t size_bytes,
                     const Append& append) {
        const ByteView all = std::as_bytes(std::span(from));
        for (; size_bytes > all.size(); size_bytes -= all.size()) append(all);
        append(all.first(size_bytes));
    }
    void codes(WeightKind kind, std::uint64_t size_bytes, const Append& append) const {
        if (kind == WeightKind::f32) return give(floats_, size_bytes, append);
        if (kind == WeightKind::bf16) return give(halves_, size_bytes, append);
        give(codes_, size_bytes, append);
    }
    void matrix(WeightKind kind, std::uint32_t out, std::uint32_t in, const Append& append) const {
        const MatrixLayout layout = matrix_layout(kind, out, in, model_.group_size);
        if (kind != WeightKind::int4) return codes(kind, layout.size_bytes, append);
        codes(kind, layout.scale_zero_bytes_at, append);
        give(scales_, layout.size_bytes - layout.scale_zero_bytes_at, append);
    }
    void ffn(std::uint32_t layer, const Append& append) const {
        const WeightKind kind = model_.ffn_kind(layer);
        const ExpertBlobLayout blob = expert_blob_layout(model_.ffn_shape(layer),
                                                         expert_dtype_of(kind));
        const std::uint64_t ends[] = {blob.gate_up_scale_zero.offset_bytes,
                                      blob.down_codes.offset_bytes,
                                      blob.down_scale_zero.offset_bytes, blob.size_bytes};
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < 4; at = ends[i++]) {
            if (ends[i] == at) continue;
            if (i % 2 == 0)
                codes(kind, ends[i] - at, append);
            else
                give(scales_, ends[i] - at, append);
        }
    }

    const DecoderModel& model_;
    std::vector<float> floats_, ones_;
    std::vector<std::uint16_t> halves_;
    std::vector<std::uint32_t> codes_, scales_;
};

// The device itself, except that it knows which kernel a pipeline is of, and what was submitted.
class Recorder : public gpu::Device {
  public:
    explicit Recorder(std::unique_ptr<gpu::Device> device) : device_(std::move(device)) {}

    std::vector<gpu::Command> last;  // of the last submission with dispatches
    std::map<std::uint32_t, std::string> kernel_of;

    const gpu::AdapterInfo& adapter() const override { return device_->adapter(); }
    Result<gpu::BufferId> create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                        std::string_view label) override {
        return device_->create_buffer(size_bytes, usage, label);
    }
    void destroy_buffer(gpu::BufferId buffer) override { device_->destroy_buffer(buffer); }
    void write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        device_->write_buffer(buffer, offset_bytes, bytes);
    }
    void create_pipeline(std::string_view kernel, std::span<const gpu::KernelConstant> constants,
                         std::function<void(Result<gpu::PipelineId>)> done) override {
        device_->create_pipeline(
            kernel, constants,
            [this, name = std::string(kernel), done](Result<gpu::PipelineId> made) {
                if (made.ok()) kernel_of[made->value] = name;
                done(std::move(made));
            });
    }
    Result<gpu::BindGroupId> create_bind_group(gpu::PipelineId pipeline,
                                               std::span<const gpu::Binding> bindings) override {
        return device_->create_bind_group(pipeline, bindings);
    }
    void destroy_bind_group(gpu::BindGroupId group) override { device_->destroy_bind_group(group); }
    void submit(std::span<const gpu::Command> commands) override {
        if (!commands.empty() && commands[0].kind == gpu::Command::Kind::dispatch)
            last.assign(commands.begin(), commands.end());
        device_->submit(commands);
    }
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        device_->read_buffer(buffer, size_bytes, std::move(done));
    }
    void on_lost(std::function<void(gpu::Loss)> handler) override {
        device_->on_lost(std::move(handler));
    }
    gpu::DeviceCounters counters() const override { return device_->counters(); }
    double gpu_us() const override { return device_->gpu_us(); }

  private:
    std::unique_ptr<gpu::Device> device_;
};

struct Options {
    std::string device;
    std::vector<std::string> shapes = {"all"}, weights = {"int4", "bf16"};
    std::vector<std::uint32_t> fetch = {1, 8, 32};
    std::uint32_t tokens = 300, context = 1024, prompt = 128;
    bool kernels = true;
    KvKind kv_kind = KvKind::f32;
};

// One shape in one kind of weights.
class Bench {
  public:
    Bench(const Options& options, Recorder& device, test::PostedLoop& loop, const Shape& shape,
          const std::string& weights)
        : options_(options),
          device_(device),
          loop_(loop),
          label_(text(shape.name, ',', weights,
                      options.kv_kind == KvKind::f16  ? " kv16"
                      : options.kv_kind == KvKind::u8 ? " kv8"
                                                      : "")),
          model_(model_of(shape, weights, options.context)),
          readback_(must(device.create_buffer(16, gpu::BufferUsage::readback, "readback"))) {
        RandomWeights source(model_);
        bool finished = false;
        GpuDecoder::create(device, model_,
                           {.context_tokens = options.context, .kv_kind = options.kv_kind}, source,
                           [&](Result<std::unique_ptr<GpuDecoder>> created) {
                               finished = true;
                               decoder_ = must(std::move(created));
                           });
        if (!finished) loop_.run_until(finished);
    }
    ~Bench() { device_.destroy_buffer(readback_); }

    void run() {
        prompt_.assign(std::min(options_.prompt, options_.context / 2), 1);
        for (std::uint32_t i = 0; i < prompt_.size(); ++i) prompt_[i] = 1 + i % 1000;
        prefill();  // warms everything
        prefill(true);
        exec_ms();
        sequential();
        for (const std::uint32_t fetch : options_.fetch) pipeline(fetch);
        if (options_.kernels) kernels();
    }

  private:
    void wait_for_gpu() {
        bool finished = false;
        device_.read_buffer(readback_, 4, [&](Result<ByteView> bytes) {
            must(std::move(bytes));
            finished = true;
        });
        loop_.run_until(finished);
    }
    std::uint32_t read_one() {
        bool finished = false;
        std::uint32_t id = 0;
        decoder_->read_chosen(1, [&](Result<GpuDecoder::TokenIds> ids) {
            id = must(std::move(ids))[0];
            finished = true;
        });
        loop_.run_until(finished);
        return id;
    }
    void feed_prompt() {
        decoder_->rewind(0);
        std::span<const std::uint32_t> rest(prompt_);
        while (!rest.empty()) {
            const auto part = rest.first(std::min<std::size_t>(rest.size(), decoder_->rows_max()));
            rest = rest.subspan(part.size());
            must(decoder_->feed(part, rest.empty() ? StepLogits::last : StepLogits::none));
        }
        decoder_->choose();
    }
    std::uint32_t tokens() const {
        return std::min(options_.tokens,
                        options_.context - static_cast<std::uint32_t>(prompt_.size()));
    }
    void print(const std::string& what, std::uint32_t fetch, std::uint32_t tokens, double ms_token,
               double prep_ms, double exec_ms, std::uint32_t dispatches) const {
        const double mb = static_cast<double>(bytes_of_a_token(model_)) / 1e6;
        std::printf("%s,%s,%u,%u,%.3f,%.1f,%.3f,%.3f,%.2f,%u,%.1f,%.0f\n", what.c_str(),
                    label_.c_str(), fetch, tokens, ms_token, 1e3 / ms_token, prep_ms, exec_ms,
                    exec_ms / ms_token, dispatches, mb, mb / exec_ms);
        std::fflush(stdout);
    }

    void prefill(bool printed = false) {
        const auto started = Clock::now();
        feed_prompt();
        read_one();
        const double ms = ms_since(started);
        if (!printed) return;
        const auto count = static_cast<std::uint32_t>(prompt_.size());
        std::printf("prefill,%s,,%u,%.3f,%.1f,,,,,,\n", label_.c_str(), count, ms / count,
                    1e3 * count / ms);
        std::fflush(stdout);
    }

    double submitted_ms(const std::vector<gpu::Command>& commands) {
        const auto started = Clock::now();
        device_.submit(commands);
        wait_for_gpu();
        return ms_since(started);
    }
    // GPU time of `commands` in ms: the slope between one and several times in one submission.
    double slope(const std::vector<gpu::Command>& commands) {
        const bool software = device_.adapter().software;
        const std::uint32_t repeats = software ? 1 : 8;
        std::vector<gpu::Command> many;
        for (std::uint32_t i = 0; i <= repeats; ++i)
            many.insert(many.end(), commands.begin(), commands.end());
        double few_ms = 1e18, many_ms = 1e18;
        for (int turn = 0; turn < (software ? 1 : 5); ++turn) {
            few_ms = std::min(few_ms, submitted_ms(commands));
            many_ms = std::min(many_ms, submitted_ms(many));
        }
        return (many_ms - few_ms) / repeats;
    }

    // A greedy step's commands, at about the middle of what the loops below compute. Run again,
    // they write the same places of the cache, or the next ones within the context.
    void exec_ms() {
        feed_prompt();
        read_one();
        const std::uint32_t ahead = device_.adapter().software ? 1 : tokens() / 2;
        for (std::uint32_t i = 0; i < ahead; ++i) {
            must(decoder_->step());
            if (decoder_->num_unread() == 64) drop_unread();
        }
        drop_unread();
        must(decoder_->step());
        step_commands_ = device_.last;
        drop_unread();
        exec_ms_ = slope(step_commands_);
    }
    void drop_unread() {
        while (decoder_->num_unread() > 0) read_one();
    }

    void sequential() {
        feed_prompt();
        read_one();
        const std::uint32_t count = tokens();
        double prep_ms = 0;
        const auto started = Clock::now();
        for (std::uint32_t i = 1; i < count; ++i) {
            const auto issued = Clock::now();
            must(decoder_->step());
            prep_ms += ms_since(issued);
            read_one();
        }
        const double ms_token = ms_since(started) / (count - 1);
        prep_ms_ = prep_ms / (count - 1);
        print("sequential", 1, count, ms_token, prep_ms_, exec_ms_, dispatches());
    }

    // From the first token, as the user has it, to the last.
    void pipeline(std::uint32_t fetch) {
        decoder_->rewind(0);
        bool finished = false;
        std::uint32_t heard = 0;
        Clock::time_point first;
        GreedyLoop loop(*decoder_, {.max_tokens = tokens(), .fetch_tokens = fetch},
                        {.on_tokens =
                             [&](std::span<const std::uint32_t> ids) {
                                 if (heard == 0) first = Clock::now();
                                 heard += static_cast<std::uint32_t>(ids.size());
                             },
                         .on_end =
                             [&](Result<AnswerEnd> how) {
                                 must(std::move(how));
                                 finished = true;
                             }});
        loop.start(prompt_);
        loop_.run_until(finished);
        const double ms_token = ms_since(first) / (heard - 1);
        print("pipeline", fetch, heard, ms_token, prep_ms_, exec_ms_, dispatches());
    }

    void kernels() {
        std::map<std::string, std::vector<gpu::Command>> by_kernel;
        for (const gpu::Command& command : step_commands_) {
            const std::string& kernel = device_.kernel_of[command.pipeline.value];
            // those that move the sequence on would leave the context
            if (kernel != "argmax_take") by_kernel[kernel].push_back(command);
        }
        for (const auto& [kernel, commands] : by_kernel)
            std::printf("kernel %s,%s,,,,,,%.4f,,%zu,,\n", kernel.c_str(), label_.c_str(),
                        slope(commands), commands.size());
        std::fflush(stdout);
    }
    std::uint32_t dispatches() const { return static_cast<std::uint32_t>(step_commands_.size()); }

    const Options& options_;
    Recorder& device_;
    test::PostedLoop& loop_;
    std::string label_;
    DecoderModel model_;
    gpu::BufferId readback_;
    std::unique_ptr<GpuDecoder> decoder_;
    std::vector<std::uint32_t> prompt_;
    std::vector<gpu::Command> step_commands_;
    double exec_ms_ = 0, prep_ms_ = 0;
};

std::vector<std::string> parts_of(const std::string& value) {
    std::vector<std::string> parts;
    std::istringstream in(value);
    for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
    return parts;
}

Options options_of(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        const auto number = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        if (flag == "--device")
            options.device = value;
        else if (flag == "--shapes")
            options.shapes = parts_of(value);
        else if (flag == "--weights")
            options.weights = parts_of(value);
        else if (flag == "--fetch") {
            options.fetch.clear();
            for (const std::string& part : parts_of(value))
                options.fetch.push_back(static_cast<std::uint32_t>(std::atoi(part.c_str())));
        } else if (flag == "--tokens")
            options.tokens = std::max(2u, number);
        else if (flag == "--context")
            options.context = std::max(128u, number);
        else if (flag == "--prompt")
            options.prompt = std::max(1u, number);
        else if (flag == "--kernels")
            options.kernels = value == "on";
        else if (flag == "--kv")
            options.kv_kind = value == "f16"  ? KvKind::f16
                              : value == "u8" ? KvKind::u8
                                              : KvKind::f32;
        else
            fail("unknown flag " + flag);
    }
    return options;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    Options options = options_of(argc, argv);
    test::PostedLoop loop;
    Recorder device(must(gpu::open_vulkan_device({.device = options.device}, loop.poster())));
    std::printf("# Machine: %s\n", device.adapter().description.c_str());
    std::printf(
        "what,shape,weights,fetch,tokens,ms_token,tok_s,prep_ms,exec_ms,utilisation,"
        "dispatches,mb,gb_s\n");
    if (device.adapter().software) {
        options.tokens = std::min(options.tokens, 8u);
        options.prompt = std::min(options.prompt, 16u);
        options.context = 128;
    }
    for (const Shape& shape : shapes) {
        const bool all = options.shapes.front() == "all";
        if (!all && std::find(options.shapes.begin(), options.shapes.end(), shape.name) ==
                        options.shapes.end())
            continue;
        for (const std::string& weights : options.weights)
            Bench(options, device, loop, shape, weights).run();
    }
    return 0;
}
