#include "tests/support/checkpoint_builder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

#include "protocol/half.h"

namespace moex::test {
namespace fs = std::filesystem;
using nlohmann::json;

TempFolder::TempFolder(std::string_view name) {
    std::string pattern =
        (fs::temp_directory_path() / ("moex-" + std::string(name) + "-XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr)
        throw std::runtime_error("no temporary folder: " + pattern);
    path_ = pattern;
}
TempFolder::~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

void write_file(const fs::path& path, std::string_view content) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
}

std::uint64_t TestTensor::num_elements() const {
    std::uint64_t count = 1;
    for (const std::uint64_t size : shape) count *= size;
    return count;
}

std::string raw_safetensors(std::string_view header, std::string_view data) {
    std::string file(8, '\0');
    for (int i = 0; i < 8; ++i)
        file[i] = static_cast<char>(std::uint64_t{header.size()} >> (8 * i));
    file += header;
    file += data;
    return file;
}

namespace {

std::string encode(const TestTensor& tensor) {
    std::string data;
    for (const float value : tensor.values) {
        char bytes[4];
        std::size_t size = 2;
        if (tensor.dtype == "F32") {
            std::memcpy(bytes, &value, size = 4);
        } else {
            const std::uint16_t bits = tensor.dtype == "F16" ? float_to_half(value)
                                                             : float_to_bfloat16(value);
            std::memcpy(bytes, &bits, 2);
        }
        data.append(bytes, size);
    }
    return data;
}

}  // namespace

void write_safetensors(const fs::path& path, const std::vector<TestTensor>& tensors) {
    json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const TestTensor& tensor : tensors) {
        const std::size_t begin = data.size();
        data += encode(tensor);
        header[tensor.name] = {{"dtype", tensor.dtype},
                               {"shape", tensor.shape},
                               {"data_offsets", {begin, data.size()}}};
    }
    write_file(path, raw_safetensors(header.dump(), data));
}

CheckpointBuilder::CheckpointBuilder(CheckpointOptions options)
    : options_(std::move(options)),
      random_(options_.seed) {
    const CheckpointOptions& o = options_;
    write_config();

    add("model.embed_tokens.weight", {o.vocab_size, o.hidden_size});
    for (std::uint32_t layer = 0; layer < o.num_layers; ++layer) {
        const std::string at = "model.layers." + std::to_string(layer) + ".";
        add_attention(at);
        const bool is_dense = std::find(o.mlp_only_layers.begin(), o.mlp_only_layers.end(),
                                        layer) != o.mlp_only_layers.end();
        if (is_dense)
            add_mlp(at + "mlp.", 48);
        else
            add_experts(at + "mlp.");
    }

    add("model.norm.weight", {o.hidden_size});
    if (!o.tied) add("lm_head.weight", {o.vocab_size, o.hidden_size});
}

void CheckpointBuilder::write_config() {
    const CheckpointOptions& o = options_;
    config = {{"architectures", {"Qwen3MoeForCausalLM"}},
              {"model_type", "qwen3_moe"},
              {"attention_bias", o.attention_bias},
              {"decoder_sparse_step", 1},
              {"head_dim", 16},
              {"hidden_act", "silu"},
              {"hidden_size", o.hidden_size},
              {"intermediate_size", 48},
              {"max_position_embeddings", 128},
              {"mlp_only_layers", o.mlp_only_layers},
              {"moe_intermediate_size", o.moe_intermediate_size},
              {"norm_topk_prob", true},
              {"num_attention_heads", 4},
              {"num_experts_per_tok", 2},
              {"num_hidden_layers", o.num_layers},
              {"num_key_value_heads", 2},
              {"rms_norm_eps", 1e-6},
              {"tie_word_embeddings", o.tied},
              {"vocab_size", o.vocab_size},
              {"eos_token_id", 7}};

    if (o.newer_config) {
        config["num_local_experts"] = o.num_experts;
        config["rope_parameters"] = {{"rope_theta", 50000.0}, {"rope_type", "default"}};
        config["dtype"] = "bfloat16";
    } else {
        config["num_experts"] = o.num_experts;
        config["rope_theta"] = 50000.0;
        config["rope_scaling"] = nullptr;
        config["torch_dtype"] = "bfloat16";
    }
}

TestTensor& CheckpointBuilder::add(std::string name, std::vector<std::uint64_t> shape) {
    TestTensor tensor{std::move(name), options_.dtype, std::move(shape), {}};
    tensor.values.resize(tensor.num_elements());

    // Random weights are rounded to bf16, so that checkpoints of every dtype hold the same weights
    // (f16 holds bf16 values of this size exactly enough to compare).
    for (float& value : tensor.values)
        value = bfloat16_to_float(float_to_bfloat16(normal_(random_)));
    return tensors.emplace_back(std::move(tensor));
}

void CheckpointBuilder::add_attention(const std::string& at) {
    const std::uint64_t h = options_.hidden_size;
    add(at + "input_layernorm.weight", {h});
    add(at + "post_attention_layernorm.weight", {h});
    add(at + "self_attn.q_proj.weight", {64, h});
    add(at + "self_attn.k_proj.weight", {32, h});
    add(at + "self_attn.v_proj.weight", {32, h});
    add(at + "self_attn.o_proj.weight", {h, 64});
    add(at + "self_attn.q_norm.weight", {16});
    add(at + "self_attn.k_norm.weight", {16});
    if (!options_.attention_bias) return;

    add(at + "self_attn.q_proj.bias", {64});
    add(at + "self_attn.k_proj.bias", {32});
    add(at + "self_attn.v_proj.bias", {32});
    add(at + "self_attn.o_proj.bias", {h});
}

void CheckpointBuilder::add_mlp(const std::string& at, std::uint64_t inner) {
    const std::uint64_t h = options_.hidden_size;
    add(at + "gate_proj.weight", {inner, h});
    add(at + "up_proj.weight", {inner, h});
    add(at + "down_proj.weight", {h, inner});
}

// Both forms of a checkpoint hold the same numbers: one tensor for each expert, or all experts of a
// layer in two fused tensors.
void CheckpointBuilder::add_experts(const std::string& at) {
    const CheckpointOptions& o = options_;
    const std::uint64_t h = o.hidden_size, inner = o.moe_intermediate_size;
    add(at + "gate.weight", {o.num_experts, h});

    const std::size_t begin = tensors.size();
    for (std::uint32_t expert = 0; expert < o.num_experts; ++expert)
        add_mlp(at + "experts." + std::to_string(expert) + ".", inner);
    if (!o.fused) return;

    TestTensor gate_up{at + "experts.gate_up_proj", o.dtype, {o.num_experts, 2 * inner, h}, {}};
    TestTensor down{at + "experts.down_proj", o.dtype, {o.num_experts, h, inner}, {}};
    for (std::size_t i = begin; i < tensors.size(); ++i) {
        const bool is_down = (i - begin) % 3 == 2;
        std::vector<float>& values = is_down ? down.values : gate_up.values;
        values.insert(values.end(), tensors[i].values.begin(), tensors[i].values.end());
    }

    tensors.resize(begin);
    tensors.push_back(std::move(gate_up));
    tensors.push_back(std::move(down));
}

TestTensor& CheckpointBuilder::tensor(std::string_view name) {
    for (TestTensor& tensor : tensors)
        if (tensor.name == name) return tensor;
    throw std::runtime_error("no tensor " + std::string(name));
}

void CheckpointBuilder::remove(std::string_view name) {
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
}

void CheckpointBuilder::write(const fs::path& directory) const {
    fs::create_directories(directory);
    write_file(directory / "config.json", config.dump(2));
    if (options_.num_shards == 1)
        return write_safetensors(directory / "model.safetensors", tensors);
    json map = json::object();
    std::vector<std::vector<TestTensor>> shards(options_.num_shards);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t shard = i * shards.size() / tensors.size();
        shards[shard].push_back(tensors[i]);
        map[tensors[i].name] = "model-" + std::to_string(shard + 1) + ".safetensors";
    }
    for (std::size_t shard = 0; shard < shards.size(); ++shard)
        write_safetensors(directory / ("model-" + std::to_string(shard + 1) + ".safetensors"),
                          shards[shard]);
    write_file(directory / "model.safetensors.index.json",
               json{{"metadata", json::object()}, {"weight_map", map}}.dump());
}

void write_large_checkpoint(const fs::path& directory, std::uint64_t wanted_bytes) {
    // An expert of 4096 x 512 takes 12 MB in bf16. All other tensors of the model are small in
    // comparison.
    CheckpointOptions options{.hidden_size = 32,
                              .moe_intermediate_size = 32,
                              .num_experts = 8,
                              .num_layers = 1,
                              .mlp_only_layers = {}};
    const std::uint64_t hidden = 4096, inner = 512, expert_bytes = 3 * hidden * inner * 2;
    const auto num_layers = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(1, (wanted_bytes + expert_bytes * options.num_experts - 1) /
                                       (expert_bytes * options.num_experts)));
    CheckpointBuilder builder(options);
    builder.config["hidden_size"] = hidden;
    builder.config["moe_intermediate_size"] = inner;
    builder.config["num_hidden_layers"] = num_layers;
    builder.config["tie_word_embeddings"] = true;
    fs::create_directories(directory);
    write_file(directory / "config.json", builder.config.dump());

    std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors{
        {"model.embed_tokens.weight", {options.vocab_size, hidden}},
        {"model.norm.weight", {hidden}}};
    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
        const std::string at = "model.layers." + std::to_string(layer) + ".";
        tensors.insert(tensors.end(), {{at + "input_layernorm.weight", {hidden}},
                                       {at + "post_attention_layernorm.weight", {hidden}},
                                       {at + "self_attn.q_proj.weight", {64, hidden}},
                                       {at + "self_attn.k_proj.weight", {32, hidden}},
                                       {at + "self_attn.v_proj.weight", {32, hidden}},
                                       {at + "self_attn.o_proj.weight", {hidden, 64}},
                                       {at + "self_attn.q_norm.weight", {16}},
                                       {at + "self_attn.k_norm.weight", {16}},
                                       {at + "mlp.gate.weight", {options.num_experts, hidden}}});
        for (std::uint32_t e = 0; e < options.num_experts; ++e) {
            const std::string expert = at + "mlp.experts." + std::to_string(e) + ".";
            tensors.insert(tensors.end(), {{expert + "gate_proj.weight", {inner, hidden}},
                                           {expert + "up_proj.weight", {inner, hidden}},
                                           {expert + "down_proj.weight", {hidden, inner}}});
        }
    }
    json header = json::object();
    std::uint64_t end = 0;
    for (const auto& [name, shape] : tensors) {
        std::uint64_t bytes = 2;
        for (const std::uint64_t size : shape) bytes *= size;
        header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
        end += bytes;
    }
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    // The pattern has an odd length, so that every expert begins at another position of it and has
    // other weights.
    std::vector<std::uint16_t> pattern((1u << 20) + 7);
    for (std::uint16_t& word : pattern) word = float_to_bfloat16(normal(random));
    std::ofstream file(directory / "model.safetensors", std::ios::binary);
    const std::string start = raw_safetensors(header.dump(), "");
    file.write(start.data(), static_cast<std::streamsize>(start.size()));
    for (std::uint64_t written = 0; written < end;) {
        const std::uint64_t bytes = std::min<std::uint64_t>(end - written, pattern.size() * 2);
        file.write(reinterpret_cast<const char*>(pattern.data()),
                   static_cast<std::streamsize>(bytes));
        written += bytes;
    }
    if (!file.flush())
        throw std::runtime_error("cannot write " + (directory / "model.safetensors").string());
}

}  // namespace moex::test
