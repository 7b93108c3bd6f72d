#include "hub/engine/packed_experts.h"

#include "protocol/thread_name.h"

namespace moex {
namespace {

// minimum panels in a range: for fewer, waking a thread costs more than it saves
constexpr std::size_t pack_panels_grain = 4;

// No round for this long means that no generation is running: pauses between layers and between
// steps are always shorter.
constexpr std::chrono::milliseconds rest_between_steps{20};

}  // namespace

PackedExperts::PackedExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads)
    : package_(std::move(package)),
      threads_(threads) {
    const ModelConfig& config = package_->config();
    const ExpertPanels panels = expert_panels(package_->expert_shape());
    up_ = panels.gate_up;
    down_ = panels.down;

    layers_.resize(config.num_layers);
    ready_ = std::make_unique<std::atomic<bool>[]>(std::size_t{config.num_layers} *
                                                   config.num_experts);
}

PackedExperts::~PackedExperts() {
    {
        const std::lock_guard lock(packing_);
        stopping_ = true;
    }
    stop_.notify_all();
    if (background_.joinable()) background_.join();
}

std::byte* PackedExperts::at(std::uint32_t layer, std::uint32_t expert) const {
    return layers_[layer].data() + expert * (up_.size_bytes() + down_.size_bytes());
}

std::atomic<bool>& PackedExperts::ready(std::uint32_t layer, std::uint32_t expert) const {
    return ready_[std::size_t{layer} * package_->config().num_experts + expert];
}

Result<PackedExperts::Unpacked> PackedExperts::find(std::uint32_t layer,
                                                    std::uint32_t expert) const {
    MOEX_ASSIGN(blob, package_->blob(layer, expert));
    MOEX_ASSIGN(view, view_expert_blob(blob, package_->expert_shape(), package_->expert_dtype()));
    const ExpertMatrices matrices = expert_matrices(view);
    return Unpacked{expert, matrices.gate_up, matrices.down};
}

Status PackedExperts::pack_missing(std::uint32_t layer, std::span<const ExpertRows> experts) {
    const auto is_ready = [&](const ExpertRows& rows) {
        return ready(layer, rows.expert).load(std::memory_order_acquire);
    };
    if (std::all_of(experts.begin(), experts.end(), is_ready)) return {};

    const std::lock_guard one_at_a_time(packing_);
    std::vector<Unpacked> missing;
    for (const ExpertRows& rows : experts) {
        if (is_ready(rows)) continue;
        MOEX_ASSIGN(one, find(layer, rows.expert));
        missing.push_back(one);
    }
    if (!missing.empty()) pack(layer, missing);
    return {};
}

// Waits until no round has run for a while, then packs one expert that may be requested later.
// Returns false when background packing must end.
bool PackedExperts::pack_ahead(std::uint32_t layer, std::uint32_t expert) {
    std::unique_lock one_at_a_time(packing_);
    while (!stopping_ && (rounds_running_ > 0 || rounds_ != rounds_seen_)) {
        rounds_seen_ = rounds_;
        stop_.wait_for(one_at_a_time, rest_between_steps, [&] { return stopping_; });
    }
    if (stopping_) return false;
    if (ready(layer, expert).load(std::memory_order_relaxed)) return true;

    const auto one = find(layer, expert);
    // do not report the error here: the round that requests this expert will get it
    if (!one.ok()) return false;
    pack(layer, {&*one, 1});
    return true;
}

void PackedExperts::pack_all(const std::function<void()>& done,
                             const std::vector<std::uint8_t>& layers) {
    const ModelConfig& config = package_->config();
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer) || (!layers.empty() && layers[layer] == 0)) continue;
        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert)
            if (!pack_ahead(layer, expert)) return;
    }
    if (done) done();
}

void PackedExperts::pack_in_background(std::function<void()> done,
                                       std::vector<std::uint8_t> layers) {
    MOEX_CHECK(!background_.joinable(), "pack_in_background() is called once");
    background_ = std::thread([this, done = std::move(done), layers = std::move(layers)] {
        name_thread("pack");
        pack_all(done, layers);
    });
}

void PackedExperts::pack(std::uint32_t layer, std::span<const Unpacked> experts) {
    const std::size_t expert_bytes = up_.size_bytes() + down_.size_bytes();
    if (!layers_[layer].data())
        layers_[layer] = AlignedBuffer(package_->config().num_experts * expert_bytes);

    const std::uint32_t up_panels = up_.num_panels(), panels = up_panels + down_.num_panels();
    threads_.parallel_for(experts.size() * panels, pack_panels_grain,
                          [&](std::size_t begin, std::size_t end) {
                              for (std::size_t unit = begin; unit < end; ++unit) {
                                  const Unpacked& one = experts[unit / panels];
                                  const auto panel = static_cast<std::uint32_t>(unit % panels);
                                  std::byte* to = at(layer, one.expert);

                                  if (panel < up_panels)
                                      pack_int4(to, up_, one.up, panel, panel + 1);
                                  else
                                      pack_int4(to + up_.size_bytes(), down_, one.down,
                                                panel - up_panels, panel - up_panels + 1);
                              }
                          });

    for (const Unpacked& one : experts) {
        ready(layer, one.expert).store(true, std::memory_order_release);
        package_->release_blob(layer, one.expert);
    }
}

// While an object of this type exists, the background thread packs no expert.
struct PackedExperts::RunningRound {
    explicit RunningRound(PackedExperts& of) : experts(of) {
        ++experts.rounds_;
        ++experts.rounds_running_;
    }
    ~RunningRound() { --experts.rounds_running_; }
    PackedExperts& experts;
};

// Biases stay in the package's blob; they are small.
Status PackedExperts::add_extras(std::uint32_t layer, std::uint32_t expert,
                                 PackedExpert& out) const {
    const ExpertShape& shape = package_->expert_shape();
    if (shape.is_plain()) return {};
    MOEX_ASSIGN(blob, package_->blob(layer, expert));
    MOEX_ASSIGN(view, view_expert_blob(blob, shape, package_->expert_dtype()));
    out.extras = {view.gate_up_bias, view.down_bias, shape.clamp};
    return {};
}

Status PackedExperts::run(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
                          std::span<const std::uint32_t> row_of_slot, float* y) {
    const RunningRound running(*this);
    MOEX_TRY(pack_missing(layer, experts));

    std::vector<PackedExpert> packed;
    for (const ExpertRows& rows : experts) {
        PackedExpert one{rows.first, rows.count, up_, down_};
        one.gate_up.data = at(layer, rows.expert);
        one.down.data = one.gate_up.data + up_.size_bytes();
        MOEX_TRY(add_extras(layer, rows.expert, one));
        packed.push_back(one);
    }
    compute_experts(packed, x, row_of_slot, y, threads_);
    return {};
}

}  // namespace moex
