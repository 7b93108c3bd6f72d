#include "web-worker/decoder/paged_steps.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"
#include "web-worker/decoder/copy_command.h"

namespace moex {
namespace {

// Bytes of a layer that are read to learn that the GPU has read the staged pages.
constexpr std::uint64_t fence_bytes = 16;

}  // namespace

PagedSteps::PagedSteps(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
                       const DecoderMemory& memory, const DecoderOps& ops, EvictedPages& store)
    : device_(device),
      model_(model),
      memory_(memory),
      ops_(ops),
      store_(store),
      set_(sizes.row_pages, sizes.pages, sizes.staging_pages),
      layer_bytes_(DecoderMemory::kv_page_bytes(model, sizes.kv_kind)) {}

PagedSteps::~PagedSteps() {
    for (const gpu::BufferId buffer : {page_readback_, fence_readback_})
        if (buffer != gpu::BufferId{}) device_.destroy_buffer(buffer);
}

Status PagedSteps::create() {
    MOEX_ASSIGN(page, device_.create_buffer(layer_bytes_ * model_.num_layers,
                                            gpu::BufferUsage::readback, "evicted page"));
    page_readback_ = page;
    MOEX_ASSIGN(fence,
                device_.create_buffer(fence_bytes, gpu::BufferUsage::readback, "staged pages"));
    fence_readback_ = fence;
    return {};
}

// ---- The queue of work: each piece ends with a call of begin_next().

void PagedSteps::add(Next work) {
    waiting_.push_back(std::move(work));
    if (!is_busy_) begin_next();
}

void PagedSteps::begin_next() {
    is_busy_ = !waiting_.empty();
    if (!is_busy_) return;
    const Next work = std::move(waiting_.front());
    waiting_.pop_front();
    work();
}

void PagedSteps::fail(const Error& error) {
    problem_ = error;
    begin_next();
}

void PagedSteps::when_done(std::function<void(Status)> done) {
    add([this, done = std::move(done)] {
        const auto life = life_.watch();
        done(problem_);
        if (life.alive()) begin_next();
    });
}

void PagedSteps::shorten(std::uint32_t num_pages) {
    add([this, num_pages] {
        set_.shorten(num_pages);
        if (num_pages == 0) problem_ = {};
        begin_next();
    });
}

void PagedSteps::run(Step step) {
    add([this, step = std::move(step)]() mutable {
        if (!problem_.ok()) return begin_next();
        step_ = std::move(step);
        begin_step();
    });
}

// ---- A step

void PagedSteps::begin_step() {
    const std::uint32_t first = step_.rows.front().position / kv_page_tokens,
                        end = step_.rows.back().position / kv_page_tokens + 1;
    if (const auto next = set_.next_move(first, end)) return move(*next, [this] { begin_step(); });
    if (const auto back = set_.next_return(first)) return move(*back, [this] { begin_step(); });

    set_.write(first, end);
    step_.write_rows();
    write_table(set_.table(step_.num_pages));
    commands_.clear();
    ops_.append_embed(commands_, static_cast<std::uint32_t>(step_.rows.size()));
    layer(0);
}

void PagedSteps::move(const WorkingSet::Move& move, Next next) {
    const auto moved = [this, move, next = std::move(next)] {
        set_.moved(move);
        next();
    };
    if (move.is_eviction && !set_.is_stored(move.page)) return store(move, moved);
    if (move.is_eviction || !set_.is_stored(move.page)) return moved();
    read_layers(
        move.page, 0,
        [this, move](std::uint32_t layer, ByteView bytes) {
            device_.write_buffer(memory_.layers[layer].kv, layer_bytes_ * move.slot, bytes);
        },
        moved);
}

// Stores the page that is in a slot.
void PagedSteps::store(const WorkingSet::Move& move, Next next) {
    read_slot(move.slot, [this, page = move.page, next = std::move(next)](Result<ByteView> bytes) {
        if (!bytes.ok()) return fail(bytes.error());
        page_bytes_.assign(bytes->begin(), bytes->end());
        store_.write(page, page_bytes_, [this, next, life = life_.watch()](Status written) {
            if (!life.alive()) return;
            if (!written.ok()) return fail(written.error());
            next();
        });
    });
}

// Reads all layers of the page in a slot.
void PagedSteps::read_slot(std::uint32_t slot, std::function<void(Result<ByteView>)> done) {
    std::vector<gpu::Command> copies;
    for (const DecoderMemory::Layer& layer : memory_.layers) {
        copies.push_back(copy_command(layer.kv, layer_bytes_ * slot, page_readback_,
                                      layer_bytes_ * copies.size(), layer_bytes_));
        copies.back().same_stage = copies.size() > 1;
    }
    device_.submit(copies);
    device_.read_buffer(page_readback_, layer_bytes_ * model_.num_layers,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (life.alive()) done(std::move(bytes));
                        });
}

// Gives the layers of a stored page to `take`, from layer `first` on.
void PagedSteps::read_layers(std::uint32_t page, std::uint32_t first,
                             std::function<void(std::uint32_t, ByteView)> take, Next next) {
    if (first == model_.num_layers) return next();
    store_.read(first, std::span(&page, 1),
                [this, page, first, take = std::move(take), next = std::move(next),
                 life = life_.watch()](Result<ByteView> bytes) {
                    if (!life.alive()) return;
                    if (!bytes.ok()) return fail(bytes.error());
                    take(first, *bytes);
                    read_layers(page, first + 1, take, next);
                });
}

void PagedSteps::write_table(std::span<const std::uint32_t> slots) {
    device_.write_buffer(memory_.lanes.front().page_table, 0, std::as_bytes(slots));
}

// Submits the layer up to the attention over the pages in memory, with the commands that are left
// of the layer before.
void PagedSteps::layer(std::uint32_t index) {
    const auto num_rows = static_cast<std::uint32_t>(step_.rows.size());
    ops_.append_attention_begin(commands_, index, num_rows);
    ops_.append_attend(commands_, index, num_rows, step_.num_pages);
    device_.submit(commands_);
    commands_.clear();

    const std::uint32_t window = model_.window(index), position = step_.rows.front().position,
                        first = window == 0 ? 0 : std::max(position + 1, window) - window;
    evicted_ = set_.evicted(first / kv_page_tokens, step_.num_pages);
    if (!std::exchange(has_fence_, false)) return stage(index, 0);
    device_.read_buffer(fence_readback_, fence_bytes,
                        [this, index, life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return fail(bytes.error());
                            stage(index, 0);
                        });
}

// Brings evicted pages from `first` on to the staging slots, group by group.
void PagedSteps::stage(std::uint32_t index, std::size_t first) {
    if (first == evicted_.size()) return end_layer(index);
    const auto group = std::span(evicted_).subspan(
        first, std::min<std::size_t>(set_.num_staging(), evicted_.size() - first));
    store_.read(
        index, group, [this, index, first, group, life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return fail(bytes.error());
            device_.write_buffer(memory_.layers[index].kv, layer_bytes_ * set_.staging_slot(0),
                                 *bytes);
            std::vector<std::uint32_t> slots(step_.num_pages, WorkingSet::absent);
            for (std::uint32_t i = 0; i < group.size(); ++i) slots[group[i]] = set_.staging_slot(i);
            write_table(slots);
            ops_.append_attend(commands_, index, static_cast<std::uint32_t>(step_.rows.size()),
                               step_.num_pages);
            device_.submit(commands_);
            commands_.clear();
            stage(index, first + group.size());
        });
}

// Ends a layer whose pages have all been read. The pages of the next layer wait until the GPU has
// read those of this one, so that no more than one layer's pages are on their way to it.
void PagedSteps::end_layer(std::uint32_t index) {
    if (!evicted_.empty()) {
        write_table(set_.table(step_.num_pages));
        commands_.push_back(copy_command(memory_.peaks, 0, fence_readback_, 0, fence_bytes));
        has_fence_ = true;
    }
    ops_.append_attention_end(commands_, index, static_cast<std::uint32_t>(step_.rows.size()));
    if (index + 1 < model_.num_layers) return layer(index + 1);
    device_.submit(commands_);
    commands_.clear();
    step_.submit_head();
    if (!std::exchange(has_fence_, false)) return begin_next();
    device_.read_buffer(fence_readback_, fence_bytes,
                        [this, life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return fail(bytes.error());
                            begin_next();
                        });
}

// ---- Pages from elsewhere

void PagedSteps::put(std::uint32_t page, Bytes bytes) {
    add([this, page, bytes = std::move(bytes)]() mutable {
        if (!problem_.ok()) return begin_next();
        set_.write(page, page + 1);
        if (const auto slot = set_.take_slot(page)) {
            for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
                device_.write_buffer(memory_.layers[layer].kv, layer_bytes_ * *slot,
                                     ByteView(bytes).subspan(layer_bytes_ * layer, layer_bytes_));
            return begin_next();
        }
        page_bytes_ = std::move(bytes);
        store_.write(page, page_bytes_, [this, page, life = life_.watch()](Status written) {
            if (!life.alive()) return;
            if (!written.ok()) return fail(written.error());
            set_.set_stored(page);
            begin_next();
        });
    });
}

void PagedSteps::get(std::uint32_t page, std::function<void(Result<ByteView>)> done) {
    add([this, page, done = std::move(done)] {
        const auto give = [this, done](Result<ByteView> bytes) {
            const auto life = life_.watch();
            done(std::move(bytes));
            if (life.alive()) begin_next();
        };
        if (!problem_.ok()) return give(problem_.error());
        if (const auto slot = set_.slot_of(page)) return read_slot(*slot, give);
        if (!set_.is_stored(page))
            return give(Error{ErrorCode::not_found, text("page ", page, " holds no tokens")});
        page_bytes_.clear();
        read_layers(
            page, 0,
            [this](std::uint32_t, ByteView bytes) {
                page_bytes_.insert(page_bytes_.end(), bytes.begin(), bytes.end());
            },
            [this, give] { give(ByteView(page_bytes_)); });
    });
}

}  // namespace moex
