// Writes packages with random weights: the weights have a standard deviation of 0.02, and the norms
// are one.
#include "hub/model/pack/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "hub/base/sha256.h"
#include "hub/model/config_json.h"
#include "hub/model/families.h"
#include "hub/model/hf_config.h"
#include "hub/model/pack/draft_head_input.h"
#include "hub/model/pack/hub_codes_writer.h"
#include "hub/model/pack/layer_writer.h"
#include "hub/model/pack/package_writer.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

constexpr double weight_deviation = 0.02;

// The random number generator SplitMix64. Source: Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", OOPSLA 2014.
class Random {
  public:
    Random(std::uint64_t seed, std::uint64_t stream)
        : state_(seed * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u) {
        next();
    }
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

  private:
    std::uint64_t state_;
};

// Divides the standard normal distribution into `count` slices of equal probability, and returns
// the middle value of each slice.
std::vector<float> normal_quantiles(int count) {
    std::vector<float> quantiles;
    for (int i = 0; i < count; ++i) {
        const double wanted = (i + 0.5) / count;
        double low = -8, high = 8;
        for (int step = 0; step < 50; ++step) {
            const double middle = (low + high) / 2;
            (0.5 * std::erfc(-middle / std::sqrt(2.0)) < wanted ? low : high) = middle;
        }
        quantiles.push_back(static_cast<float>(low));
    }

    return quantiles;
}

// Generates random weights directly in the form that the package stores, without quantisation.
class WeightSource {
  public:
    WeightSource() {
        const auto normals = normal_quantiles(4096);
        for (int i = 0; i < 4096; ++i)
            weights_[i] = normals[i] * static_cast<float>(weight_deviation);
        const auto coarse = normal_quantiles(256);
        for (int i = 0; i < 256; ++i)
            codes_[i] = static_cast<std::uint8_t>(
                std::clamp(std::lround(zero + coarse[i] * code_deviation), 0l, 15l));
    }
    void fill_bf16(Random& random, std::span<std::byte> out) const {
        fill_words<std::uint16_t>(random, out, [](float w) { return float_to_bfloat16(w); });
    }
    void fill_f32(Random& random, std::span<std::byte> out) const {
        fill_words<float>(random, out, [](float w) { return w; });
    }
    void fill_codes(Random& random, std::span<std::byte> out) const {
        for (std::size_t at = 0; at < out.size(); at += 4) {
            const std::uint64_t bits = random.next();
            std::uint32_t word = 0;
            for (int k = 0; k < 8; ++k)
                word |= std::uint32_t{codes_[(bits >> (8 * k)) & 255]} << (4 * k);
            std::memcpy(out.data() + at, &word, 4);
        }
    }
    // Codes of MXFP4 are uniform. The scales are powers of two, so that the weights have the
    // deviation of the others up to a factor of 1.5.
    void fill_mxfp4_codes(Random& random, std::span<std::byte> out) const {
        for (std::size_t at = 0; at < out.size(); at += 4) {
            const auto word = static_cast<std::uint32_t>(random.next() >> 16);
            std::memcpy(out.data() + at, &word, 4);
        }
    }
    void fill_mxfp4_scales(Random& random, std::span<std::byte> out) const {
        constexpr double uniform_deviation = 2.93;  // of the 16 values
        const int exponent = static_cast<int>(
            std::lround(127 + std::log2(weight_deviation / uniform_deviation)));
        for (std::byte& scale : out)
            scale = static_cast<std::byte>(exponent - static_cast<int>(random.next() >> 62) / 2);
    }
    void fill_scale_zero(Random& random, std::span<std::byte> out) const {
        for (std::size_t at = 0; at < out.size(); at += 4) {
            const float spread = 0.75f + 0.5f * static_cast<float>(random.next() >> 40) * 0x1p-24f;
            const std::uint32_t word = pack_scale_zero(
                float_to_half(static_cast<float>(weight_deviation) / code_deviation * spread),
                float_to_half(zero));
            std::memcpy(out.data() + at, &word, 4);
        }
    }

  private:
    static constexpr float zero = 7.5f, code_deviation = 2.6f;
    template <class Word, class Convert>
    void fill_words(Random& random, std::span<std::byte> out, Convert convert) const {
        std::uint64_t bits = 0;
        for (std::size_t i = 0; i < out.size() / sizeof(Word); ++i) {
            if (i % 5 == 0) bits = random.next();
            const Word word = convert(weights_[bits & 4095]);
            bits >>= 12;
            std::memcpy(out.data() + i * sizeof(Word), &word, sizeof(Word));
        }
    }
    float weights_[4096];
    std::uint8_t codes_[256];
};

Status fill_expert(const WeightSource& weights, Random random, const ExpertBlobLayout& layout,
                   ExpertDtype dtype, std::span<std::byte> blob) {
    const auto section = [&](const BlobSection& at) {
        return blob.subspan(at.offset_bytes, at.size_bytes);
    };

    for (const BlobSection& codes : {layout.gate_up_codes, layout.down_codes}) {
        if (dtype == ExpertDtype::int4)
            weights.fill_codes(random, section(codes));
        else if (dtype == ExpertDtype::mxfp4)
            weights.fill_mxfp4_codes(random, section(codes));
        else if (dtype == ExpertDtype::bf16)
            weights.fill_bf16(random, section(codes));
        else
            weights.fill_f32(random, section(codes));
    }

    for (const BlobSection& scales : {layout.gate_up_scale_zero, layout.down_scale_zero}) {
        if (dtype == ExpertDtype::mxfp4)
            weights.fill_mxfp4_scales(random, section(scales));
        else
            weights.fill_scale_zero(random, section(scales));
    }
    for (const BlobSection& biases : {layout.gate_up_bias, layout.down_bias})
        weights.fill_f32(random, section(biases));
    return {};
}

std::uint64_t hub_tensor_bytes(const HubTensorSpec& spec, bool is_f32) {
    std::uint64_t bytes = is_f32 ? 4 : 2;
    for (const std::uint64_t size : spec.shape) bytes *= size;
    return bytes;
}

// Writes one random package: the experts layer by layer, then hub.safetensors.
class SynthWriter {
  public:
    SynthWriter(const ModelConfig& config, std::uint64_t seed, const PackOptions& options,
                const ExpertShape& shape, PackageOutput& output, ThreadPool& threads,
                const std::function<void(const PackProgress&)>& progress)
        : config_(config),
          seed_(seed),
          options_(options),
          layout_(expert_blob_layout(shape, options.expert_dtype)),
          output_(output),
          threads_(threads),
          progress_(progress),
          state_{.num_layers = config.num_layers} {
        manifest_.config = config;
        manifest_.expert_dtype = options.expert_dtype;
        manifest_.group_size = shape.group_size;
        manifest_.hub_dtype = options.hub_dtype;
        report_.warnings = {"no tokenizer: the package accepts and returns token ids only"};
    }

    // Writes the package. `draft_head` is the record of its head's manifest, if it has a head.
    Result<PackReport> run(std::string_view name, std::optional<FileRecord> draft_head) {
        manifest_.name = std::string(name);
        manifest_.draft_head = draft_head;
        list_hub_tensors();
        for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer)
            if (config_.is_moe(layer)) state_.total_bytes += layer_bytes();

        for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer)
            MOEX_TRY(write_layer(layer));
        MOEX_TRY(write_hub());

        report_.num_blobs = static_cast<std::uint32_t>(blobs_.size());
        report_.output_bytes = manifest_.hub.size_bytes + blobs_.size() * layout_.size_bytes;
        MOEX_TRY(output_.finish(manifest_));
        manifest_text_ = manifest_to_json(manifest_);

        state_.done_bytes = state_.total_bytes;
        if (progress_) progress_(state_);
        return std::move(report_);
    }

    // After run(): size and hash of manifest.json.
    FileRecord manifest_record() const {
        return {sha256(as_byte_view(manifest_text_)), manifest_text_.size()};
    }

  private:
    std::uint64_t layer_bytes() const { return config_.num_experts * layout_.size_bytes; }

    void list_hub_tensors() {
        specs_ = hub_tensor_specs(config_);
        for (const HubTensorSpec& spec : specs_)
            state_.total_bytes += hub_tensor_bytes(spec, options_.hub_f32);
        hub_ = hub_entries(specs_, options_.hub_dtype, [&](std::size_t) {
            return options_.hub_f32 ? TensorDtype::f32 : TensorDtype::bf16;
        });
    }

    void add(std::uint64_t bytes) {
        state_.done_bytes += bytes;
        if (progress_) progress_(state_);
    }

    Status write_layer(std::uint32_t layer) {
        std::vector<Sha256>& hashes = manifest_.experts.emplace_back();
        if (!config_.is_moe(layer)) return {};

        state_.layer = layer;

        auto finished = output_.finished_layer(layer, config_.num_experts, layout_.size_bytes);
        if (finished) {
            hashes = std::move(*finished);
            ++report_.layers_resumed;
            add(layer_bytes());
        } else {
            const auto fill = [&](std::uint32_t expert, std::span<std::byte> blob) {
                const Random random(seed_, (std::uint64_t{layer} + 1) << 32 | expert);
                return fill_expert(weights_, random, layout_, options_.expert_dtype, blob);
            };

            MOEX_ASSIGN(written, write_layer_blobs(
                                     output_, config_.num_experts, layout_.size_bytes, threads_,
                                     fill, [&](std::uint32_t) { add(layout_.size_bytes); }));
            MOEX_TRY(output_.finish_layer(layer, written));

            hashes = std::move(written);
        }

        blobs_.insert(hashes.begin(), hashes.end());
        return {};
    }

    Status write_hub() {
        if (const auto finished = output_.finished_hub()) {
            manifest_.hub = *finished;
            return {};
        }

        MOEX_ASSIGN(hub, output_.write_hub(hub_.entries, [&](std::size_t index, const auto& write) {
            return write_tensor(index, write);
        }));
        manifest_.hub = hub;

        return {};
    }

    Status write_tensor(std::size_t index, const PackageOutput::WriteBytes& write) {
        constexpr std::uint64_t window_bytes = 1u << 20;
        const HubEntry& entry = hub_.of[index];
        if (entry.is_scales) return write(coder_.scales());
        const HubTensorSpec& spec = specs_[entry.spec_index];
        if (entry.codes) coder_.begin(codes_layout(spec, *entry.codes));

        const bool is_norm = spec.name.ends_with("norm.weight");
        const std::uint64_t size_bytes = hub_tensor_bytes(spec, options_.hub_f32);
        Random random(seed_, entry.spec_index);
        for (std::uint64_t at = 0; at < size_bytes; at += window_bytes) {
            window_.resize(std::min(window_bytes, size_bytes - at));
            if (is_norm)
                fill_ones(window_);
            else if (options_.hub_f32)
                weights_.fill_f32(random, window_);
            else
                weights_.fill_bf16(random, window_);
            if (entry.codes) {
                floats_.resize(window_.size() / (options_.hub_f32 ? 4 : 2));
                elements_to_float(options_.hub_f32 ? TensorDtype::f32 : TensorDtype::bf16,
                                  window_.data(), floats_);
                MOEX_CHECK(coder_.add(floats_, window_), "synthetic weights are small");
            }
            MOEX_TRY(write(window_));
        }

        return {};
    }

    void fill_ones(std::span<std::byte> out) const {
        const std::uint32_t one = options_.hub_f32 ? 0x3f800000u   // 1.0
                                                   : 0x3f803f80u;  // 1.0 as bf16, twice
        for (std::size_t i = 0; i < out.size(); i += 4) std::memcpy(out.data() + i, &one, 4);
    }

    const ModelConfig& config_;
    const std::uint64_t seed_;
    const PackOptions& options_;
    const ExpertBlobLayout layout_;
    PackageOutput& output_;
    ThreadPool& threads_;
    const std::function<void(const PackProgress&)>& progress_;

    const WeightSource weights_;
    std::vector<HubTensorSpec> specs_;
    HubEntries hub_;
    RowCoder coder_;
    std::vector<float> floats_;
    PackageManifest manifest_;
    std::string manifest_text_;
    PackReport report_;
    PackProgress state_;
    std::set<Sha256> blobs_;
    Bytes window_;
};

struct NamedShape {
    std::string_view name;
    ModelConfig config;
    double rope_theta = 10000.0;
};

// Returns a model shape with as many layers and experts as qwen3-30b-a3b, but with small matrices.
ModelConfig many_experts() {
    return {.hidden_size = 64,
            .num_layers = 48,
            .num_heads = 4,
            .num_kv_heads = 2,
            .head_dim = 16,
            .vocab_size = 256,
            .context_tokens = 4096,
            .num_experts = 128,
            .top_k = 8,
            .moe_intermediate_size = 32,
            .tied_embeddings = true};
}

// The model shapes that benches and papers use. In these shapes every layer is routed, and weights
// of the chosen experts are normalised, as in Qwen3-MoE.
std::span<const NamedShape> named_shapes() {
    static const NamedShape shapes[] = {
        {"bench-moe",
         {.hidden_size = 1024,
          .num_layers = 12,
          .num_heads = 16,
          .num_kv_heads = 4,
          .head_dim = 64,
          .vocab_size = 32000,
          .context_tokens = 16384,
          .num_experts = 32,
          .top_k = 4,
          .moe_intermediate_size = 512}},
        {"qwen3-30b-a3b",
         {.hidden_size = 2048,
          .num_layers = 48,
          .num_heads = 32,
          .num_kv_heads = 4,
          .head_dim = 128,
          .vocab_size = 151936,
          .context_tokens = 40960,
          .num_experts = 128,
          .top_k = 8,
          .moe_intermediate_size = 768},
         1e6},
        {"paper",
         {.hidden_size = 4096,
          .num_layers = 46,
          .num_heads = 32,
          .num_kv_heads = 4,
          .head_dim = 128,
          .vocab_size = 151936,
          .context_tokens = 40960,
          .num_experts = 128,
          .top_k = 8,
          .moe_intermediate_size = 2048},
         1e6},
        {"tiny",
         {.hidden_size = 64,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .vocab_size = 256,
          .context_tokens = 256,
          .num_experts = 8,
          .top_k = 2,
          .moe_intermediate_size = 32,
          .tied_embeddings = true}},
        {"many-experts", many_experts()},
        {"demo",
         {.hidden_size = 384,
          .num_layers = 8,
          .num_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 64,
          .vocab_size = 8192,
          .context_tokens = 1024,
          .num_experts = 16,
          .top_k = 4,
          .moe_intermediate_size = 256,
          .tied_embeddings = true}},
    };

    return shapes;
}

// Shapes of other families, as the config.json of the released model says.
struct FamilyShape {
    std::string_view name, config_json;
};
constexpr FamilyShape family_shapes[] = {
    {"qwen3-0.6b", R"({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "intermediate_size": 3072,
        "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "rope_theta": 1000000})"},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 201088, "max_position_embeddings": 131072, "num_local_experts": 32,
        "num_experts_per_tok": 4, "intermediate_size": 2880, "sliding_window": 128,
        "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 4096, "truncate": false}})"},
    {"glm-4.5-air", R"({"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151552, "max_position_embeddings": 131072, "n_routed_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1,
        "intermediate_size": 10944, "first_k_dense_replace": 1, "attention_bias": true,
        "use_qk_norm": false, "partial_rotary_factor": 0.5, "rope_theta": 1000000,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": true})"},
    {"qwen3-next-80b-a3b", R"({"model_type": "qwen3_next", "hidden_size": 2048,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "vocab_size": 151936, "max_position_embeddings": 262144,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "intermediate_size": 5120,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "partial_rotary_factor": 0.25, "rope_theta": 10000000})"},
    {"qwen3.6-35b-a3b", R"({"model_type": "qwen3_5_moe_text", "hidden_size": 2048,
        "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "partial_rotary_factor": 0.25, "rope_theta": 10000000})"},
    {"tiny-hybrid", R"({"model_type": "qwen3_5_moe_text", "hidden_size": 64,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 3,
        "partial_rotary_factor": 0.25, "rope_theta": 10000000})"},
};

// The plan of one synthetic package.
struct SynthPlan {
    ModelConfig config;
    ExpertShape shape;
    std::string name, identity;
    std::uint64_t output_bytes = 1u << 20;

    SynthPlan(const ModelConfig& wanted, const ExpertShape& experts, std::string_view called,
              std::uint64_t seed, const PackOptions& options)
        : config(wanted),
          shape(experts),
          name(called) {
        for (const HubTensorSpec& spec : hub_tensor_specs(config))
            output_bytes += hub_tensor_bytes(spec, options.hub_f32);
        for (const LayerPlan& plan : config.layers)
            if (plan.is_routed)
                output_bytes += config.num_experts *
                                expert_blob_layout(shape, options.expert_dtype).size_bytes;
        identity = text("moex-synth 1\n", to_json(config).dump(), '\n', name, ' ', seed, ' ',
                        expert_dtype_name(options.expert_dtype), ' ', shape.group_size, ' ',
                        options.hub_f32, ' ', hub_dtype_name(options.hub_dtype), '\n');
    }
};

// Writes the head that drafts tokens as a package below the folder `out`. Returns the record of its
// manifest. A head that an interrupted call has finished is written again, since it is small.
Result<FileRecord> synth_draft_head(const SynthPlan& head, std::uint64_t seed,
                                    const std::filesystem::path& out, const PackOptions& options,
                                    ThreadPool& threads, PackReport& report) {
    const std::filesystem::path folder = draft_head_folder(out);
    std::error_code ignored;
    if (std::filesystem::exists(folder / "manifest.json", ignored))
        std::filesystem::remove_all(folder, ignored);
    MOEX_ASSIGN(output, PackageOutput::open(folder, head.identity, head.output_bytes));
    const std::function<void(const PackProgress&)> silent;
    SynthWriter writer(head.config, seed, options, head.shape, output, threads, silent);
    MOEX_ASSIGN(own, writer.run(head.name, {}));
    const FileRecord record = writer.manifest_record();
    report.output_bytes += own.output_bytes + record.size_bytes;
    return record;
}

}  // namespace

ModelConfig with_num_layers(ModelConfig config, std::uint32_t num_layers) {
    MOEX_CHECK(!config.layers.empty(), "a shape has a layer");
    config.layers.resize(num_layers, config.layers.back());
    config.num_layers = num_layers;
    return config;
}

Result<ModelConfig> synth_shape(std::string_view shape) {
    std::string known;
    for (const NamedShape& candidate : named_shapes()) {
        if (candidate.name == shape) {
            ModelConfig config = candidate.config;
            const std::vector<std::uint8_t> all_routed(config.num_layers, 1);
            config.layers = plain_layers({.rope_theta = candidate.rope_theta}, all_routed);
            return config;
        }
        known += text(known.empty() ? "" : ", ", candidate.name);
    }
    for (const FamilyShape& candidate : family_shapes) {
        if (candidate.name == shape) {
            MOEX_ASSIGN(object, parse_strict_json(candidate.config_json, candidate.name));
            return parse_hf_config(object);
        }
        known += text(", ", candidate.name);
    }

    return Error{ErrorCode::invalid_argument,
                 text("shape \"", shape, "\" is unknown; known: ", known)};
}

Result<PackReport> synth_package(const ModelConfig& config, std::string_view name,
                                 std::uint64_t seed, const std::filesystem::path& out,
                                 const PackOptions& options, ThreadPool& threads,
                                 const std::function<void(const PackProgress&)>& progress) {
    MOEX_ASSIGN(checked, parse_model_config(to_json(config)));
    if (!package_name_ok(name))
        return Error{ErrorCode::invalid_argument,
                     text("package name ", json_excerpt(std::string(name)),
                          ", wanted 1 to 128 printable characters without spaces")};

    if (options.hub_dtype != HubDtype::bf16) MOEX_TRY(check_rows_for_codes(checked));
    ExpertShape shape = checked.expert_shape(0);
    if (has_codes(options.expert_dtype)) {
        const bool is_mxfp4 = options.expert_dtype == ExpertDtype::mxfp4;
        shape.codes = options.expert_dtype;
        MOEX_ASSIGN(group_size, choose_group_size(shape.hidden_size, shape.moe_intermediate_size,
                                                  is_mxfp4 ? mxfp4_block : options.group_size_max));
        shape.group_size = group_size;
    }

    const SynthPlan model(checked, shape, name, seed, options);
    const Family* const family = find_family(checked.architecture);
    const auto head_config = family && family->has_draft_head && !checked.is_draft_head
                                 ? draft_head_config(checked)
                                 : std::nullopt;
    std::optional<SynthPlan> head;
    if (head_config)
        head.emplace(*head_config, shape, text(name.substr(0, 117), "-draft-head"), seed + 1,
                     options);
    MOEX_ASSIGN(output, PackageOutput::open(out, model.identity,
                                            model.output_bytes + (head ? head->output_bytes : 0)));

    PackReport of_head;
    std::optional<FileRecord> record;
    if (head) {
        MOEX_ASSIGN(written, synth_draft_head(*head, seed + 1, out, options, threads, of_head));
        record = written;
    }
    MOEX_ASSIGN(
        report,
        SynthWriter(checked, seed, options, shape, output, threads, progress).run(name, record));
    report.output_bytes += of_head.output_bytes;
    return std::move(report);
}

}  // namespace moex
