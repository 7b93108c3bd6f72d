#include "hub/model/layer_plan.h"

#include <array>
#include <optional>
#include <string_view>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Fields = JsonFields<Json, FileWording>;

// The words of an enumeration in manifest.json, in the order of its values.
template <class Enum, std::size_t N>
struct Words {
    std::array<std::string_view, N> words;

    std::string_view of(Enum value) const { return words[static_cast<std::size_t>(value)]; }
    void read(Fields& fields, const char* key, Enum& out) const {
        const Json* const found = fields.find(key);
        if (found == nullptr) return;
        for (std::size_t i = 0; i < N; ++i)
            if (found->is_string() && found->get_ref<const std::string&>() == words[i]) {
                out = static_cast<Enum>(i);
                return;
            }
        std::string all;
        for (const std::string_view word : words) all += text(all.empty() ? "" : ", ", word);
        fields.wrong(key, all, found);
    }
};
constexpr Words<Mixer, 3> mixers{{"attention", "gated_delta_rule", "latent_attention"}};
constexpr Words<QkNorm, 3> qk_norms{{"none", "per_head", "all_heads"}};
constexpr Words<Activation, 3> activations{{"silu", "gelu", "clamped_swiglu"}};
constexpr Words<RouterScore, 3> scores{{"softmax", "softmax_of_chosen", "sigmoid"}};
constexpr Words<RopeScalingKind, 3> scalings{{"llama3", "linear", "yarn"}};

constexpr std::int64_t plan_whole_max = 1 << 24;
constexpr double plan_real_max = 1e6;

// Calls `field` for every field of a plan except enumerations: field(key, member). The order is
// that of the struct.
template <class Plan, class Field>
void for_each_field(Plan& plan, const Field& field) {
    field("window", plan.window);
    field("rotary_size", plan.rope.rotary_size);
    field("norms_add_one", plan.norms_add_one);
    field("qkv_bias", plan.has_qkv_bias);
    field("o_bias", plan.has_o_bias);
    field("sinks", plan.has_sinks);
    field("output_gate", plan.has_output_gate);
    field("clip_qkv", plan.clip_qkv);
    field("attention_scale", plan.attention_scale);
    field("residual_multiplier", plan.residual_multiplier);
    field("routed", plan.is_routed);
    field("shared_size", plan.shared_size);
    field("shared_gate", plan.has_shared_gate);
    field("activation_limit", plan.activation_limit);
    field("expert_bias", plan.has_expert_bias);
}
template <class Plan, class Field>
void for_each_router_field(Plan& router, const Field& field) {
    field("bias", router.has_bias);
    field("correction_bias", router.has_correction_bias);
    field("num_groups", router.num_groups);
    field("groups_kept", router.groups_kept);
    field("normalised", router.is_normalised);
    field("scaling", router.scaling);
}
template <class Scaling, class Field>
void for_each_scaling_field(Scaling& scaling, const Field& field) {
    field("factor", scaling.factor);
    field("low_freq_factor", scaling.low_freq_factor);
    field("high_freq_factor", scaling.high_freq_factor);
    field("original_context_tokens", scaling.original_context_tokens);
    field("beta_fast", scaling.beta_fast);
    field("beta_slow", scaling.beta_slow);
    field("attention_factor", scaling.attention_factor);
    field("truncate", scaling.truncate);
}

struct ReadField {
    Fields& fields;
    void operator()(const char* key, bool& out) const { fields.boolean(key, out); }
    void operator()(const char* key, double& out) const {
        fields.real(key, -plan_real_max, plan_real_max, out);
    }
    void operator()(const char* key, std::uint32_t& out) const {
        fields.whole(key, 0, plan_whole_max, out);
    }
};

// Writes the members of `value` that differ from those of `plain`.
template <class Each, class Value>
void write_fields(Json& object, const Each& each, const Value& value, const Value& plain) {
    Json defaults = Json::object();
    each(plain, [&](const char* key, const auto& member) { defaults[key] = member; });
    each(value, [&](const char* key, const auto& member) {
        if (Json(member) != defaults[key]) object[key] = member;
    });
}

Json scaling_to_json(const RopeScaling& scaling) {
    Json object{{"kind", scalings.of(scaling.kind)}};
    write_fields(
        object, [](auto& value, const auto& field) { for_each_scaling_field(value, field); },
        scaling, RopeScaling{});
    return object;
}

// Reads an object that is a member of a plan. A member that is absent leaves `out` unchanged.
template <class Read>
Status read_member(Fields& fields, const char* key, const Read& read) {
    const Json* const found = fields.find(key);
    if (found == nullptr) return {};
    if (!found->is_object()) {
        fields.wrong(key, "an object", found);
        return {};
    }
    Fields inner(*found, {text("config: plans: ", key)});
    read(inner);
    if (inner.problem()) return *inner.problem();
    return {};
}

std::string_view or_nothing(bool is_there, std::string_view words) {
    return is_there ? words : std::string_view();
}

std::string router_words(const RouterPlan& router) {
    std::string out = router.score == RouterScore::softmax             ? "router: softmax"
                      : router.score == RouterScore::softmax_of_chosen ? "router: softmax of the "
                                                                         "chosen"
                                                                       : "router: sigmoid";
    out += or_nothing(router.has_bias, ", bias");
    out += or_nothing(router.has_correction_bias, ", correction bias");
    if (router.num_groups > 1)
        out += text(", ", router.groups_kept, " of ", router.num_groups, " groups");
    out += or_nothing(router.is_normalised, ", normalised");
    if (router.scaling != 1.0) out += text(", times ", router.scaling);
    return out;
}

}  // namespace

Json plan_to_json(const LayerPlan& plan) {
    const LayerPlan plain;
    Json object = Json::object();
    if (plan.mixer != plain.mixer) object["mixer"] = mixers.of(plan.mixer);
    if (plan.qk_norm != plain.qk_norm) object["qk_norm"] = qk_norms.of(plan.qk_norm);
    if (plan.activation != plain.activation) object["activation"] = activations.of(plan.activation);
    object["rope_theta"] = plan.rope.theta;
    write_fields(
        object, [](auto& value, const auto& field) { for_each_field(value, field); }, plan, plain);
    if (plan.rope.scaling.factor != 1.0)
        object["rope_scaling"] = scaling_to_json(plan.rope.scaling);
    if (!plan.is_routed) return object;

    Json router{{"score", scores.of(plan.router.score)}};
    write_fields(
        router, [](auto& value, const auto& field) { for_each_router_field(value, field); },
        plan.router, plain.router);
    object["router"] = std::move(router);
    return object;
}

Result<LayerPlan> parse_plan(const Json& object) {
    if (!object.is_object())
        return Error{ErrorCode::bad_field,
                     text("config: plans has ", json_excerpt(object), ", wanted objects")};
    LayerPlan plan;
    Fields fields(object, {"config: plans"});
    mixers.read(fields, "mixer", plan.mixer);
    qk_norms.read(fields, "qk_norm", plan.qk_norm);
    activations.read(fields, "activation", plan.activation);
    fields.positive("rope_theta", plan.rope.theta);
    for_each_field(plan, ReadField{fields});

    RopeScaling& scaling = plan.rope.scaling;
    MOEX_TRY(read_member(fields, "rope_scaling", [&](Fields& inner) {
        scalings.read(inner, "kind", scaling.kind);
        for_each_scaling_field(scaling, ReadField{inner});
        if (!(scaling.factor >= 1.0)) inner.wrong("factor", "at least 1", inner.find("factor"));
        if (scaling.kind != RopeScalingKind::linear && scaling.original_context_tokens == 0)
            inner.wrong("original_context_tokens", "at least 1",
                        inner.find("original_context_tokens"));
    }));
    MOEX_TRY(read_member(fields, "router", [&](Fields& inner) {
        scores.read(inner, "score", plan.router.score);
        for_each_router_field(plan.router, ReadField{inner});
    }));
    if (fields.problem()) return *fields.problem();
    return plan;
}

Status check_computable(const LayerPlan& plan) {
    const auto refuse = [](std::string_view what) {
        return Error{ErrorCode::unsupported,
                     text("config: this program does not compute ", what, " yet")};
    };
    if (plan.mixer == Mixer::latent_attention) return refuse("latent attention (MLA)");
    if (plan.activation == Activation::gelu) return refuse("FFNs with gelu");
    if (plan.activation != Activation::silu && (!plan.is_routed || plan.shared_size > 0))
        return refuse("a clamped SwiGLU in dense layers or shared experts");
    if (plan.is_routed && plan.has_expert_bias != (plan.activation == Activation::clamped_swiglu))
        return refuse("experts with biases but no clamped SwiGLU, or the reverse");
    return {};
}

std::vector<std::string> plan_words(const LayerPlan& plan) {
    std::vector<std::string> words;
    const auto add = [&](bool is_there, std::string word) {
        if (is_there) words.push_back(std::move(word));
    };
    add(plan.mixer != Mixer::attention, text("mixer ", mixers.of(plan.mixer)));
    add(plan.window > 0, text("window ", plan.window));
    add(plan.rope.rotary_size > 0, text("rotates ", plan.rope.rotary_size, " of each head"));
    const RopeScaling& scaling = plan.rope.scaling;
    add(scaling.factor != 1.0, text("rope ", scalings.of(scaling.kind), " by ", scaling.factor));
    add(plan.norms_add_one, "norms 1 + w");
    add(plan.qk_norm != QkNorm::none, plan.qk_norm == QkNorm::per_head
                                          ? "q and k norms per head"
                                          : "q and k norms over all heads");
    add(plan.has_qkv_bias, plan.has_o_bias ? "biases of q, k, v and o" : "biases of q, k and v");
    add(plan.has_sinks, "sinks");
    add(plan.has_output_gate, "output gate");
    add(plan.clip_qkv != 0, text("q, k and v clamped to ±", plan.clip_qkv));
    add(plan.attention_scale != 0, text("attention times ", plan.attention_scale));
    add(plan.residual_multiplier != 1.0, text("residuals times ", plan.residual_multiplier));
    add(plan.shared_size > 0,
        text("shared expert of ", plan.shared_size, plan.has_shared_gate ? " with a gate" : ""));
    add(plan.activation == Activation::gelu, "gelu");
    add(plan.activation == Activation::clamped_swiglu,
        text("SwiGLU clamped to ", plan.activation_limit));
    add(plan.has_expert_bias, "biases of experts");
    add(plan.is_routed, router_words(plan.router));
    return words;
}

}  // namespace moex
