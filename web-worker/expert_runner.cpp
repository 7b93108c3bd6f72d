#include "web-worker/expert_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels_constants.h"
#include "web-worker/finite_rows.h"
#include "web-worker/gpu/kernel_source.h"

namespace moex {
namespace {

constexpr const char* kernel_names[] = {"unpack_rows",
                                        "group_gate_up_row",
                                        "group_gate_up_8",
                                        "group_down_1",
                                        "group_down_8",
                                        "group_down_row",
                                        "group_gate_up_serial_1",
                                        "group_gate_up_serial_8",
                                        "group_down_serial_1",
                                        "group_down_serial_8",
                                        "pack_rows",
                                        "gate_up",
                                        "silu_mul",
                                        "down"};
constexpr std::uint64_t pass_end_bytes = 16;

// The number of values that one workgroup of each kernel computes, taken from the constants of the
// kernel's WGSL.
namespace kernels = gpu::kernels;
constexpr std::uint32_t unpack_values = kernels::unpack_rows::threads *
                                        kernels::unpack_rows::values_per_thread;
constexpr std::uint32_t gate_up_outputs = kernels::group_gate_up_row::outputs_per_group;
constexpr std::uint32_t gate_up_outputs_serial = kernels::group_gate_up_serial_1::outputs_per_group;
constexpr std::uint32_t down_outputs = kernels::group_down_1::outputs_per_group;
static_assert(gate_up_outputs == kernels::group_gate_up_8::outputs_per_group);
static_assert(down_outputs == kernels::group_down_8::outputs_per_group &&
              down_outputs == kernels::group_down_serial_1::outputs_per_group);

std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint32_t>((a + b - 1) / b);
}
gpu::Command dispatch(gpu::PipelineId pipeline, gpu::BindGroupId group, std::uint32_t x,
                      std::uint32_t y = 1) {
    gpu::Command command;
    command.kind = gpu::Command::Kind::dispatch;
    command.pipeline = pipeline;
    command.bind_group = group;
    command.workgroups = {x, y, 1};
    return command;
}
// Returns the values for the overrides of int4.wgsl and, for clamped experts, of clamped.wgsl.
std::vector<gpu::KernelConstant> constants_of(const ExpertShape& shape,
                                              const ExpertBlobLayout& layout) {
    const auto word = [](const BlobSection& section) {
        return static_cast<std::uint32_t>(section.offset_bytes / 4);
    };
    std::uint32_t chunks_per_group_log2 = 0;
    while ((32u << chunks_per_group_log2) < shape.group_size) ++chunks_per_group_log2;
    std::vector<gpu::KernelConstant> constants = {
        {"hidden_size", shape.hidden_size},
        {"moe_intermediate_size", shape.moe_intermediate_size},
        {"chunks_per_group_log2", chunks_per_group_log2},
        {"gate_up_scale_zero_word", word(layout.gate_up_scale_zero)},
        {"down_codes_word", word(layout.down_codes)},
        {"down_scale_zero_word", word(layout.down_scale_zero)}};
    if (shape.is_clamped())
        constants.insert(constants.end(),
                         {{"gate_up_bias_word", word(layout.gate_up_bias)},
                          {"down_bias_word", word(layout.down_bias)},
                          {"limit_bits", __builtin_bit_cast(std::uint32_t, shape.clamp)}});
    return constants;
}

gpu::Command copy(gpu::BufferId source, gpu::BufferId target, std::uint64_t size_bytes) {
    gpu::Command command;
    command.kind = gpu::Command::Kind::copy;
    command.source = source;
    command.target = target;
    command.size_bytes = size_bytes;
    return command;
}

}  // namespace

ExpertRunner::ExpertRunner(gpu::Device& device, ExpertStore& store, RunnerOptions options)
    : device_(device),
      store_(store),
      options_(fit(options, std::numeric_limits<std::uint64_t>::max(), device.adapter())),
      layout_(expert_blob_layout(options.shape)),
      sizes_(sizes_of(options_)) {
    MOEX_CHECK(options_.shape.is_plain() || options_.shape.is_clamped(),
               "experts with biases and no clamp, or the reverse");
}

ExpertRunner::Kernel ExpertRunner::gate_up_kernel(std::uint32_t family) const {
    return static_cast<Kernel>((by_threads() ? group_gate_up_serial_1 : group_gate_up_row) +
                               family);
}
ExpertRunner::Kernel ExpertRunner::down_kernel(std::uint32_t family) const {
    return static_cast<Kernel>((by_threads() ? group_down_serial_1 : group_down_1) + family);
}
// Kernels that read no weights are the same for experts of every form.
std::string ExpertRunner::name_of(Kernel kernel) const {
    std::string name = kernel_names[kernel];
    if (kernel == unpack_rows || kernel == pack_rows) return name;
    // silu_mul reads products only.
    if (options_.shape.is_mxfp4() && kernel != silu_mul) name += "_mxfp4";
    return options_.shape.is_clamped() ? name + "_clamped" : name;
}
bool ExpertRunner::uses(Kernel kernel) const {
    if (kernel >= group_gate_up_row && kernel <= group_down_row) return !by_threads();
    if (kernel >= group_gate_up_serial_1 && kernel <= group_down_serial_8) return by_threads();
    return true;
}

ExpertRunner::~ExpertRunner() {
    destroy_lanes();
    for (const gpu::BufferId place : places_) device_.destroy_buffer(place);
}

void ExpertRunner::destroy_lanes() {
    forget_arenas(0);
    for (Lane& lane : lanes_) {
        for (const gpu::BindGroupId group : {lane.unpack, lane.pack})
            device_.destroy_bind_group(group);
        for (const gpu::BufferId buffer :
             {lane.upload, lane.x, lane.intermediate, lane.y_pairs, lane.y_wire, lane.readback})
            device_.destroy_buffer(buffer);
        for (const gpu::BufferId buffer : lane.pass_ends) device_.destroy_buffer(buffer);
    }
    lanes_.clear();

    if (single_.silu.value != 0) device_.destroy_bind_group(single_.silu);
    for (const gpu::BufferId buffer : {single_.x, single_.gate_up, single_.intermediate, single_.y,
                                       single_.readback, single_.params})
        if (buffer.value != 0) device_.destroy_buffer(buffer);
    single_ = {};
}

// Destroys the bind groups of the arenas from index `first` on.
void ExpertRunner::forget_arenas(std::size_t first) {
    const auto cut = [this](std::vector<gpu::BindGroupId>& groups, std::size_t size) {
        while (groups.size() > size) {
            device_.destroy_bind_group(groups.back());
            groups.pop_back();
        }
    };
    for (Lane& lane : lanes_) {
        cut(lane.gate_up, gpu::tile_families * first);
        cut(lane.down, gpu::tile_families * first);
        cut(lane.down_row, first);
    }
    cut(single_.gate_up_groups, first);
    cut(single_.down_groups, first);
    bound_arenas_.resize(std::min(bound_arenas_.size(), first));
}

void ExpertRunner::create(std::function<void(Status)> done) { create_next(0, std::move(done)); }

void ExpertRunner::create_next(int kernel, std::function<void(Status)> done) {
    while (kernel < num_kernels && !uses(static_cast<Kernel>(kernel))) ++kernel;
    if (kernel == num_kernels) {
        created_ = true;
        done(make_lanes());
        return;
    }
    device_.create_pipeline(
        name_of(static_cast<Kernel>(kernel)), constants_of(options_.shape, layout_),
        [this, kernel, done = std::move(done),
         life = life_.watch()](Result<gpu::PipelineId> made) mutable {
            if (!life.alive()) return;
            if (!made.ok()) {
                done(Error{made.error().code, text("kernel ", name_of(static_cast<Kernel>(kernel)),
                                                   ": ", made.error().message)});
                return;
            }
            pipelines_[kernel] = *made;
            create_next(kernel + 1, std::move(done));
        });
}

Status ExpertRunner::make_lanes() {
    MOEX_TRY(make_single());
    lanes_.resize(options_.num_lanes);
    commands_.resize(options_.num_lanes);
    for (Lane& lane : lanes_) MOEX_TRY(make_lane(lane));
    return prepare();
}

bool ExpertRunner::idle() const {
    return !single_.busy &&
           std::none_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.busy; });
}

void ExpertRunner::refit(RunnerOptions options, std::function<void(Status)> done) {
    options.kernels = options_.kernels;  // kernels of the other kind were not compiled
    refit_ = {fit(options, std::numeric_limits<std::uint64_t>::max(), device_.adapter()),
              std::move(done)};
    refit_when_idle();
}

void ExpertRunner::refit(const Welcome& welcome, std::uint64_t bytes,
                         std::function<void(Status)> done) {
    const RunnerOptions wanted = options_for(welcome, bytes, device_.adapter());
    if (wanted.num_lanes != options_.num_lanes || wanted.tokens_max != options_.tokens_max ||
        wanted.pairs_max != options_.pairs_max)
        refit(wanted, std::move(done));
}

void ExpertRunner::refit_when_idle() {
    if (!refit_ || !idle()) return;
    Refit refit = std::move(*refit_);
    refit_.reset();
    options_ = refit.options;
    sizes_ = sizes_of(options_);

    Status made;
    if (created_) {
        destroy_lanes();
        made = make_lanes();
    }
    refit.done(std::move(made));
}

Status ExpertRunner::make_lane(Lane& lane) {
    const auto buffer = [&](gpu::BufferId& out, std::uint64_t size_bytes, gpu::BufferUsage usage,
                            const char* label) -> Status {
        MOEX_ASSIGN(made, device_.create_buffer(size_bytes, usage, label));
        out = made;
        return {};
    };

    MOEX_TRY(buffer(lane.upload, sizes_.upload, gpu::BufferUsage::storage, "upload"));
    MOEX_TRY(buffer(lane.x, sizes_.x, gpu::BufferUsage::storage, "x"));
    MOEX_TRY(
        buffer(lane.intermediate, sizes_.intermediate, gpu::BufferUsage::storage, "intermediate"));
    MOEX_TRY(buffer(lane.y_pairs, sizes_.y_pairs, gpu::BufferUsage::storage, "y_pairs"));
    MOEX_TRY(buffer(lane.y_wire, sizes_.y_wire, gpu::BufferUsage::storage, "y_wire"));
    MOEX_TRY(buffer(lane.readback, group_frame_bytes(sizes_.y_wire), gpu::BufferUsage::readback,
                    "readback"));
    for (gpu::BufferId& end : lane.pass_ends)
        MOEX_TRY(buffer(end, pass_end_bytes, gpu::BufferUsage::readback, "end of a pass"));

    lane.plan.tiles_only = by_threads();
    const gpu::Binding unpack[] = {{lane.upload}, {lane.x}};
    MOEX_ASSIGN(unpack_group, device_.create_bind_group(pipelines_[unpack_rows], unpack));
    lane.unpack = unpack_group;

    const gpu::Binding pack[] = {{lane.upload}, {lane.y_pairs}, {lane.y_wire}};
    MOEX_ASSIGN(pack_group, device_.create_bind_group(pipelines_[pack_rows], pack));
    lane.pack = pack_group;
    return {};
}

Status ExpertRunner::make_single() {
    const auto buffer = [&](gpu::BufferId& out, std::uint64_t size_bytes, gpu::BufferUsage usage,
                            const char* label) -> Status {
        MOEX_ASSIGN(made, device_.create_buffer(size_bytes, usage, label));
        out = made;
        return {};
    };

    MOEX_TRY(buffer(single_.x, sizes_.single_x, gpu::BufferUsage::storage, "single x"));
    MOEX_TRY(buffer(single_.gate_up, sizes_.single_gate_up, gpu::BufferUsage::storage,
                    "single gate_up"));
    MOEX_TRY(buffer(single_.intermediate, sizes_.single_intermediate, gpu::BufferUsage::storage,
                    "single intermediate"));
    MOEX_TRY(buffer(single_.y, sizes_.single_x, gpu::BufferUsage::storage, "single y"));
    MOEX_TRY(
        buffer(single_.readback, sizes_.single_x, gpu::BufferUsage::readback, "single readback"));
    MOEX_TRY(buffer(single_.params, sizeof(gpu::ExpertParams), gpu::BufferUsage::uniform,
                    "single params"));

    const gpu::Binding silu[] = {{single_.gate_up}, {single_.intermediate}, {single_.params}};
    MOEX_ASSIGN(silu_group, device_.create_bind_group(pipelines_[silu_mul], silu));
    single_.silu = silu_group;
    return {};
}

Status ExpertRunner::prepare() {
    const auto& arenas = store_.arenas();
    const auto changed = std::mismatch(bound_arenas_.begin(), bound_arenas_.end(), arenas.begin(),
                                       arenas.end());
    forget_arenas(static_cast<std::size_t>(changed.first - bound_arenas_.begin()));

    while (places_.size() < gpu::tile_families * arenas.size()) {
        MOEX_ASSIGN(place, device_.create_buffer(sizeof(gpu::GroupPlace), gpu::BufferUsage::uniform,
                                                 "place"));
        const gpu::GroupPlace value{.first_tile_word = static_cast<std::uint32_t>(
                                        gpu::round_header_words + places_.size())};
        device_.write_buffer(place, 0, std::as_bytes(std::span(&value, 1)));
        places_.push_back(place);
    }

    for (Lane& lane : lanes_)
        while (lane.down.size() < gpu::tile_families * arenas.size())
            MOEX_TRY(bind_arena(lane, lane.down.size() / gpu::tile_families));

    while (single_.gate_up_groups.size() < arenas.size()) {
        const gpu::BufferId arena = arenas[single_.gate_up_groups.size()];
        const gpu::Binding first[] = {{single_.x}, {arena}, {single_.gate_up}, {single_.params}};
        MOEX_ASSIGN(gate_up_group, device_.create_bind_group(pipelines_[gate_up], first));

        const gpu::Binding second[] = {
            {single_.intermediate}, {arena}, {single_.y}, {single_.params}};
        MOEX_ASSIGN(down_group, device_.create_bind_group(pipelines_[down], second));

        single_.gate_up_groups.push_back(gate_up_group);
        single_.down_groups.push_back(down_group);
    }

    bound_arenas_ = arenas;
    return {};
}

Status ExpertRunner::bind_arena(Lane& lane, std::size_t arena) {
    const gpu::BufferId weights = store_.arenas()[arena];
    for (std::uint32_t family = 0; family < gpu::tile_families; ++family) {
        const gpu::Binding place{
            places_[RoundPlan::place_of(static_cast<std::uint32_t>(arena), family)]};
        // The kernel that handles one row with the lanes of a workgroup reads x from the upload
        // buffer.
        std::vector<gpu::Binding> first{{lane.upload}, {weights},           {weights},
                                        {lane.x},      {lane.intermediate}, place};
        if (family == 0 && !by_threads()) first.erase(first.begin() + 3);
        MOEX_ASSIGN(gate_up_group,
                    device_.create_bind_group(pipelines_[gate_up_kernel(family)], first));
        const gpu::Binding second[] = {{lane.upload},       {weights},      {weights},
                                       {lane.intermediate}, {lane.y_pairs}, place};
        MOEX_ASSIGN(down_group, device_.create_bind_group(pipelines_[down_kernel(family)], second));
        lane.gate_up.push_back(gate_up_group);
        lane.down.push_back(down_group);
    }

    if (by_threads()) return {};
    const gpu::Binding row[] = {
        {lane.upload}, {weights}, {weights}, {lane.intermediate}, {lane.y_wire}};
    MOEX_ASSIGN(row_group, device_.create_bind_group(pipelines_[group_down_row], row));
    lane.down_row.push_back(row_group);
    return {};
}

bool ExpertRunner::has_free_lane() const {
    if (refit_) return false;
    for (const Lane& lane : lanes_)
        if (!lane.busy) return true;
    return false;
}

std::size_t ExpertRunner::free_lane() const {
    std::size_t index = 0;
    while (index < lanes_.size() && lanes_[index].busy) ++index;
    MOEX_CHECK(index < lanes_.size(), "a group without a free lane");
    return index;
}

Status ExpertRunner::check_size(const GroupShape& shape, std::uint64_t upload_bytes) const {
    if (shape.num_tokens > options_.tokens_max || shape.num_pairs > options_.pairs_max)
        return Error{
            ErrorCode::num_tokens_range,
            text("group of ", shape.num_tokens, " rows and ", shape.num_pairs,
                 " pairs, this worker takes ", options_.tokens_max, " and ", options_.pairs_max)};
    if (upload_bytes > sizes_.upload || y_bytes_of(shape) > sizes_.y_wire)
        return Error{ErrorCode::num_tokens_range,
                     text("group of ", shape.num_tokens, " rows and ", shape.num_pairs,
                          " pairs in ", dtype_name(shape.dtype), ", this worker has room for ",
                          dtype_name(options_.dtype))};
    return {};
}

Status ExpertRunner::run_group(const GroupDispatchView& group, Done done,
                               std::span<std::byte> around_x) {
    const GroupShape& shape = group.shape;
    MOEX_TRY(check_size(shape, 0));
    const std::size_t index = free_lane();
    Lane& lane = lanes_[index];

    RoundPlan& plan = lane.plan;
    MOEX_TRY(plan.plan(group, bound_arenas_.size(), find_awaiting(), around_x));
    MOEX_TRY(check_size(shape, plan.upload.size()));

    lane.busy = true;
    submit(index, shape);
    read_answers(index, shape, std::move(done));
    return {};
}

// Returns the function that finds the slots of a plan's experts. The next submission waits until
// the GPU has copied these experts.
std::function<std::optional<ExpertSlot>(Unit)> ExpertRunner::find_awaiting() {
    return [this](Unit unit) {
        const auto slot = store_.find(unit);
        if (slot) device_.await_transfer(slot->transfer);
        return slot;
    };
}

// Submits the commands of a lane's plan to the GPU.
void ExpertRunner::submit(std::size_t index, const GroupShape& shape, gpu::BufferId pass_end) {
    Lane& lane = lanes_[index];
    device_.write_buffer(lane.upload, 0, lane.plan.upload);
    std::vector<gpu::Command>& commands = commands_[index];
    record(shape, lane, commands);
    if (lane.plan.pack) {
        commands.push_back(copy(lane.y_wire, lane.readback, gpu::round_up(y_bytes_of(shape), 4)));
        commands.back().target_offset_bytes = group_result_y_offset;
    } else {
        commands.push_back(copy(lane.upload, pass_end, pass_end_bytes));
    }
    device_.submit(commands);
}

void ExpertRunner::read_answers(std::size_t index, const GroupShape& shape, Done done) {
    const std::uint64_t y_bytes = y_bytes_of(shape);
    device_.read_buffer(lanes_[index].readback, gpu::round_up(group_frame_bytes(y_bytes), 4),
                        [this, index, shape, y_bytes, done = std::move(done),
                         life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (bytes.ok())
                                bytes = ByteView(bytes->subspan(group_result_y_offset, y_bytes));
                            finish_group(index, shape, std::move(bytes), done);
                            if (life.alive()) refit_when_idle();
                        });
}

Status ExpertRunner::begin_passes(const GroupDispatchView& group) {
    MOEX_CHECK(!passes_, "one group's passes at a time");
    const GroupShape& shape = group.shape;
    const std::uint64_t table_words = RoundPlan::table_words_max(ExpertStore::arenas_max,
                                                                 shape.num_tokens, shape.num_pairs);
    MOEX_TRY(check_size(shape, 4 * table_words + gpu::round_up(group.x_bytes.size(), 4)));
    passes_ = std::make_shared<Passes>(Passes{.lane = free_lane(), .group = &group});
    lanes_[passes_->lane].busy = true;
    return {};
}

Status ExpertRunner::run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) {
    const std::shared_ptr<Passes> passes = passes_;
    MOEX_CHECK(passes && passes->begun - passes->ended < passes_max, "one more pass in flight");
    const GroupShape& shape = passes->group->shape;
    Lane& lane = lanes_[passes->lane];

    MOEX_TRY(lane.plan.plan_pass(*passes->group, bound_arenas_.size(), find_awaiting(), experts,
                                 passes->begun == 0, is_last));
    const gpu::BufferId end = lane.pass_ends[passes->begun++ % passes_max];
    submit(passes->lane, shape, end);
    if (is_last) {
        passes_.reset();
        read_answers(passes->lane, shape, std::move(done));
        return {};
    }
    device_.read_buffer(
        end, pass_end_bytes,
        [this, passes, done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            ++passes->ended;
            free_after_passes(*passes);
            done(bytes.ok() ? Result<ByteView>(ByteView()) : std::move(bytes));
            if (life.alive()) refit_when_idle();
        });
    return {};
}

void ExpertRunner::end_passes() {
    if (!passes_) return;
    passes_->over = true;
    free_after_passes(*std::exchange(passes_, nullptr));
    refit_when_idle();
}

void ExpertRunner::free_after_passes(const Passes& passes) {
    if (passes.over && passes.begun == passes.ended) lanes_[passes.lane].busy = false;
}

// Records the dispatches of a lane's plan, stage by stage.
void ExpertRunner::record(const GroupShape& shape, const Lane& lane,
                          std::vector<gpu::Command>& commands) {
    const std::uint32_t hidden = options_.shape.hidden_size,
                        inner = options_.shape.moe_intermediate_size;
    const RoundPlan& plan = lane.plan;
    commands.clear();
    if (plan.unpack)
        commands.push_back(
            dispatch(pipelines_[unpack_rows], lane.unpack,
                     ceil_div(std::uint64_t{shape.num_tokens} * hidden, unpack_values)));

    const auto tiles = [&](Kernel (ExpertRunner::*kernel)(std::uint32_t) const,
                           const std::vector<gpu::BindGroupId>& groups, std::uint32_t workgroups) {
        bool same_stage = false;
        for (const RoundPlan::Tiles& one : plan.tiles) {
            commands.push_back(dispatch(pipelines_[(this->*kernel)(one.family)],
                                        groups[RoundPlan::place_of(one.arena, one.family)],
                                        workgroups, one.num_tiles));
            commands.back().same_stage = std::exchange(same_stage, true);
        }
    };
    tiles(&ExpertRunner::gate_up_kernel, lane.gate_up,
          inner / (by_threads() ? gate_up_outputs_serial : gate_up_outputs));

    if (plan.two_dispatches) {
        commands.push_back(
            dispatch(pipelines_[group_down_row], lane.down_row[plan.tiles.front().arena],
                     hidden / kernels::group_down_row::outputs_per_group, plan.num_answers));
        return;
    }
    tiles(&ExpertRunner::down_kernel, lane.down, hidden / down_outputs);
    if (!plan.pack) return;
    commands.push_back(dispatch(
        pipelines_[pack_rows], lane.pack,
        shape.dtype == Dtype::int8 ? 1 : ceil_div(hidden, kernels::pack_rows::columns_per_group),
        plan.num_answers));
}

void ExpertRunner::finish_group(std::size_t lane, const GroupShape& shape, Result<ByteView> bytes,
                                const Done& done) {
    lanes_[lane].busy = false;
    const std::uint32_t rows_out = shape.unsummed ? shape.num_pairs : shape.num_tokens;

    if (bytes.ok() &&
        !wire_rows_finite(shape.dtype, *bytes, rows_out, options_.shape.hidden_size)) {
        done(Error{
            ErrorCode::non_finite,
            text("layer ", shape.layer, ": an answer is not finite in ", dtype_name(shape.dtype))});
        return;
    }
    done(std::move(bytes));
}

Status ExpertRunner::run_single(Unit unit, std::span<const float> x, Done done) {
    const std::uint32_t hidden = options_.shape.hidden_size,
                        inner = options_.shape.moe_intermediate_size;
    const auto num_tokens = static_cast<std::uint32_t>(x.size() / hidden);

    const auto slot = store_.find(unit);
    if (!slot)
        return Error{ErrorCode::unknown_expert,
                     text("layer ", unit.layer, " expert ", unit.expert, " is not held here")};

    if (num_tokens > sizes_.single_tokens)
        return Error{
            ErrorCode::num_tokens_range,
            text(num_tokens, " rows in one call, this worker takes ", sizes_.single_tokens)};
    if (single_.busy || refit_) return Error{ErrorCode::overloaded, "a single call is running"};

    single_.busy = true;

    gpu::ExpertParams params;
    params.blob_word = slot->blob_word;
    params.num_tokens = num_tokens;
    params.hidden_size = hidden;
    params.moe_intermediate_size = inner;
    params.group_size = options_.shape.group_size;
    params.gate_up_scale_zero_word = static_cast<std::uint32_t>(
        layout_.gate_up_scale_zero.offset_bytes / 4);
    params.down_codes_word = static_cast<std::uint32_t>(layout_.down_codes.offset_bytes / 4);
    params.down_scale_zero_word = static_cast<std::uint32_t>(layout_.down_scale_zero.offset_bytes /
                                                             4);

    device_.write_buffer(single_.params, 0, std::as_bytes(std::span(&params, 1)));
    device_.write_buffer(single_.x, 0, std::as_bytes(x));
    device_.await_transfer(slot->transfer);

    const std::uint64_t y_bytes = 4 * std::uint64_t{num_tokens} * hidden;
    const gpu::Command commands[] = {
        dispatch(pipelines_[gate_up], single_.gate_up_groups[slot->arena],
                 ceil_div(2 * inner, kernels::gate_up::threads), num_tokens),
        dispatch(pipelines_[silu_mul], single_.silu, ceil_div(inner, kernels::silu_mul::threads),
                 num_tokens),
        dispatch(pipelines_[down], single_.down_groups[slot->arena],
                 ceil_div(hidden, kernels::down::threads), num_tokens),
        copy(single_.y, single_.readback, y_bytes),
    };

    device_.submit(commands);
    device_.read_buffer(
        single_.readback, y_bytes,
        [this, num_tokens, hidden, done = std::move(done),
         life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            single_.busy = false;
            if (bytes.ok() && !wire_rows_finite(Dtype::f32, *bytes, num_tokens, hidden))
                done(Error{ErrorCode::non_finite, "an answer is not finite"});
            else
                done(std::move(bytes));
            if (life.alive()) refit_when_idle();
        });
    return {};
}

}  // namespace moex
