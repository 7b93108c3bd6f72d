#include "hub/model/pack/expert_finder.h"

#include <array>
#include <string>

#include "protocol/text.h"

namespace moex {
namespace {

constexpr const char *up_words = "moe_intermediate_size, hidden_size",
                     *down_words = "hidden_size, moe_intermediate_size",
                     *all_up_words = "num_experts, moe_intermediate_size, hidden_size",
                     *all_down_words = "num_experts, hidden_size, moe_intermediate_size";

// Finds experts in the layouts of `names`.
class ExpertFinder {
  public:
    ExpertFinder(const ExpertPlace& place, const ExpertNames& names)
        : place_(place),
          source_(place.source),
          names_(names),
          at_(text("model.layers.", place.layer, '.')),
          experts_(place.count) {}

    // Returns an empty list if the layer has no such tensors.
    Result<std::vector<ExpertSource>> find() {
        if (!names_.all_gate_up.empty() && source_.find(at_ + std::string(names_.all_gate_up)))
            MOEX_TRY(find_fused());
        else if (!names_.at.empty() && source_.find(stacked(names_.gate)))
            MOEX_TRY(find_stacked());
        else if (!names_.at.empty() && source_.find(single(0, names_.gate)))
            MOEX_TRY(find_single());
        else
            return std::vector<ExpertSource>{};
        if (place_.has_bias) MOEX_TRY(find_biases());
        return std::move(experts_);
    }
    // Requires one tensor per expert, for the error of a layer that has no experts at all.
    Result<std::vector<ExpertSource>> require_single() {
        MOEX_TRY(find_single());
        return std::move(experts_);
    }

  private:
    std::string single(std::uint64_t expert, std::string_view matrix) const {
        return text(at_, names_.at, '.', expert, '.', matrix, ".weight");
    }
    std::string stacked(std::string_view matrix) const {
        return text(at_, names_.at, '.', matrix, ".weight");
    }

    // gate_up [E, 2 I, H] and down [E, H, I].
    Status find_fused() {
        const std::string name = text(at_, names_.all_gate_up);
        if (is_across(*source_.find(name))) return find_fused_across();

        const std::uint64_t hidden = place_.hidden, inner = place_.inner, count = place_.count;
        MOEX_ASSIGN(gate_up, source_.require(name, std::array{count, 2 * inner, hidden},
                                             "num_experts, 2 * moe_intermediate_size, "
                                             "hidden_size"));
        MOEX_ASSIGN(down, source_.require(text(at_, names_.all_down),
                                          std::array{count, hidden, inner}, all_down_words));
        for (std::uint64_t e = 0; e < count; ++e) {
            const std::uint64_t first = e * 2 * inner;
            experts_[e] = {{gate_up, first}, {gate_up, first + inner}, {down, e * hidden}};
            if (!names_.alternates) continue;
            experts_[e].gate.row_step = experts_[e].up.row_step = 2;
            experts_[e].up.first_row = first + 1;
        }
        return {};
    }

    // The same transposed: gate_up [E, H, 2 I] and down [E, I, H].
    Status find_fused_across() {
        const std::uint64_t hidden = place_.hidden, inner = place_.inner, count = place_.count;
        MOEX_ASSIGN(gate_up, source_.require(text(at_, names_.all_gate_up),
                                             std::array{count, hidden, 2 * inner},
                                             "num_experts, hidden_size, 2 * "
                                             "moe_intermediate_size"));
        MOEX_ASSIGN(down, source_.require(text(at_, names_.all_down),
                                          std::array{count, inner, hidden}, all_up_words));
        for (std::uint64_t e = 0; e < count; ++e) {
            ExpertMatrix gate{.tensor = gate_up, .first_row = e * hidden, .is_transposed = true};
            gate.row_step = names_.alternates ? 2 : 1;
            ExpertMatrix up = gate;
            up.first_column = names_.alternates ? 1 : inner;
            experts_[e] = {
                gate, up, {.tensor = down, .first_row = e * inner, .is_transposed = true}};
        }
        return {};
    }

    // Returns true if a fused tensor is [E, H, 2 I]. Where both sizes are equal, the family
    // decides.
    bool is_across(const TensorReader& gate_up) const {
        const auto& shape = gate_up.info().shape;
        if (shape.size() != 3 || !gate_up.info().plain) return false;
        const bool may_be_across = shape[1] == place_.hidden && shape[2] == 2 * place_.inner,
                   may_be_upright = shape[1] == 2 * place_.inner && shape[2] == place_.hidden;
        return may_be_across && (!may_be_upright || names_.is_transposed);
    }

    Status find_stacked() {
        const std::uint64_t hidden = place_.hidden, inner = place_.inner, count = place_.count;
        const std::array up_shape{count, inner, hidden}, down_shape{count, hidden, inner};
        MOEX_ASSIGN(gate, source_.require(stacked(names_.gate), up_shape, all_up_words));
        MOEX_ASSIGN(up, source_.require(stacked(names_.up), up_shape, all_up_words));
        MOEX_ASSIGN(down, source_.require(stacked(names_.down), down_shape, all_down_words));
        for (std::uint64_t e = 0; e < count; ++e)
            experts_[e] = {{gate, e * inner}, {up, e * inner}, {down, e * hidden}};
        return {};
    }

    Status find_single() {
        const std::array up_shape{place_.inner, place_.hidden},
            down_shape{place_.hidden, place_.inner};
        for (std::uint64_t e = 0; e < place_.count; ++e) {
            MOEX_ASSIGN(gate, source_.require(single(e, names_.gate), up_shape, up_words));
            MOEX_ASSIGN(up, source_.require(single(e, names_.up), up_shape, up_words));
            MOEX_ASSIGN(down, source_.require(single(e, names_.down), down_shape, down_words));
            experts_[e] = {{gate, 0}, {up, 0}, {down, 0}};
        }
        return {};
    }

    Status find_biases() {
        MOEX_ASSIGN(gate_up, source_.require(text(at_, names_.all_gate_up_bias),
                                             std::array{place_.count, 2 * place_.inner},
                                             "num_experts, 2 * moe_intermediate_size"));
        MOEX_ASSIGN(down, source_.require(text(at_, names_.all_down_bias),
                                          std::array{place_.count, place_.hidden},
                                          "num_experts, hidden_size"));
        for (std::uint64_t e = 0; e < place_.count; ++e)
            experts_[e].biases = {gate_up, down, e, names_.alternates};
        return {};
    }

    const ExpertPlace& place_;
    const ModelSource& source_;
    const ExpertNames& names_;
    const std::string at_;
    std::vector<ExpertSource> experts_;
};

}  // namespace

Result<std::vector<ExpertSource>> find_experts(const ExpertPlace& place, const Family& family) {
    const ExpertNames* const own = family.experts ? &*family.experts : nullptr;
    for (const ExpertNames* names : {own, &common_experts}) {
        if (names == nullptr) continue;
        MOEX_ASSIGN(found, ExpertFinder(place, *names).find());
        if (!found.empty()) return found;
    }
    const bool has_single = own != nullptr && !own->at.empty();
    return ExpertFinder(place, has_single ? *own : common_experts).require_single();
}

}  // namespace moex
