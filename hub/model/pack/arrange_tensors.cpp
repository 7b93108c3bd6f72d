#include "hub/model/pack/arrange_tensors.h"

#include <numeric>
#include <utility>

#include "hub/model/pack/readers/picked_rows.h"

namespace moex {
namespace {

using Rows = std::vector<std::uint32_t>;

void append(Rows& rows, std::uint64_t first, std::uint64_t count) {
    const std::size_t had = rows.size();
    rows.resize(had + count);
    std::iota(rows.begin() + static_cast<std::ptrdiff_t>(had), rows.end(),
              static_cast<std::uint32_t>(first));
}

class Arranger {
  public:
    explicit Arranger(ModelSource& source) : source_(source) {}

    // Replaces the tensor `name`, if the source has it, by tensors of some of its rows. `shape` is
    // the shape that it must have.
    struct Part {
        std::string name;
        Rows rows;
    };
    Status split(const std::string& name, const std::vector<std::uint64_t>& shape,
                 std::vector<Part> parts) {
        if (source_.find(name) == nullptr) return {};
        MOEX_TRY(source_.require(name, shape, "as config.json has it"));
        auto node = source_.readers.extract(name);
        const std::shared_ptr<const TensorReader> whole = std::move(node.mapped());
        for (Part& part : parts)
            source_.readers[part.name] = pick_rows(whole, part.name, std::move(part.rows));
        return {};
    }

  private:
    ModelSource& source_;
};

// Drops the part of names that models have which also read pictures.
void rename_text_part(ModelSource& source) {
    constexpr std::string_view longer = "model.language_model.";
    std::vector<std::string> names;
    for (const auto& [name, reader] : source.readers)
        if (name.starts_with(longer)) names.push_back(name);
    for (const std::string& name : names) {
        auto node = source.readers.extract(name);
        node.key() = "model." + name.substr(longer.size());
        source.readers.insert(std::move(node));
    }
}

Status split_queries(Arranger& arrange, const ModelConfig& config, const std::string& layer) {
    const std::uint64_t size = config.head_dim;
    Rows q, gate;
    for (std::uint64_t head = 0; head < config.num_heads; ++head) {
        append(q, 2 * head * size, size);
        append(gate, (2 * head + 1) * size, size);
    }
    return arrange.split(layer + "self_attn.q_proj.weight",
                         {2 * config.num_heads * size, config.hidden_size},
                         {{layer + "self_attn.q_proj.weight", std::move(q)},
                          {layer + "self_attn.output_gate.weight", std::move(gate)}});
}

Status split_delta_net(Arranger& arrange, const ModelConfig& config, const std::string& layer) {
    const DeltaNetSizes& net = config.delta_net;
    const std::uint64_t each = net.value_heads / net.key_heads, values = each * net.value_dim,
                        group = 2 * (net.key_dim + values);
    Rows q, k, v, z, b, a;
    for (std::uint64_t head = 0; head < net.key_heads; ++head) {
        const std::uint64_t first = head * group;
        append(q, first, net.key_dim);
        append(k, first + net.key_dim, net.key_dim);
        append(v, first + 2 * net.key_dim, values);
        append(z, first + 2 * net.key_dim + values, values);
        append(b, head * 2 * each, each);
        append(a, (head * 2 + 1) * each, each);
    }
    q.insert(q.end(), k.begin(), k.end());
    q.insert(q.end(), v.begin(), v.end());
    const std::string prefix = layer + "linear_attn.";
    MOEX_TRY(arrange.split(prefix + "in_proj_qkvz.weight",
                           {net.key_heads * group, config.hidden_size},
                           {{prefix + "in_proj_qkv.weight", std::move(q)},
                            {prefix + "in_proj_z.weight", std::move(z)}}));
    MOEX_TRY(arrange.split(prefix + "in_proj_ba.weight",
                           {2 * std::uint64_t{net.value_heads}, config.hidden_size},
                           {{prefix + "in_proj_b.weight", std::move(b)},
                            {prefix + "in_proj_a.weight", std::move(a)}}));

    Rows channels;
    append(channels, 0, net.channels());
    const std::string conv = prefix + "conv1d.weight";
    return arrange.split(conv, {net.channels(), 1, net.conv_taps}, {{conv, std::move(channels)}});
}

}  // namespace

Status arrange_tensors(ModelSource& source, const ModelConfig& config) {
    rename_text_part(source);
    Arranger arrange(source);
    for (std::uint32_t index = 0; index < config.num_layers; ++index) {
        const LayerPlan& plan = config.layers[index];
        const std::string layer = text("model.layers.", index, '.');
        if (plan.has_output_gate) MOEX_TRY(split_queries(arrange, config, layer));
        if (plan.mixer == Mixer::gated_delta_rule)
            MOEX_TRY(split_delta_net(arrange, config, layer));
    }
    return {};
}

}  // namespace moex
