// Steps of a sequence of which a part of the pages is outside of the GPU's memory (working_set.h).
// In each layer, attention reads the pages of the working set first. Then the evicted pages pass
// through a few staging slots, group by group, and each group is read before the next one takes its
// place. The parts of all pages are merged as always, from the first page to the last, so that a
// row has the bits that it would have with all pages in memory.
//   layer: norm, q k v, rope | pages 3 4 5 | page 0 staged | page 1 staged | ... | merge, o,
//   experts
// A step reads each evicted page once in each layer, so that a step of many rows (a prompt) costs
// little more than one of a single row.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/decoder_ops.h"
#include "web-worker/decoder/evicted_pages.h"
#include "web-worker/decoder/step_rows.h"
#include "web-worker/decoder/working_set.h"
#include "web-worker/gpu/device.h"

namespace moex {

class PagedSteps {
  public:
    struct Step {
        std::vector<StepRow> rows;
        std::uint32_t num_pages = 0;  // pages of the sequence behind the step
        // Writes the header and the rows; and submits what follows the last layer.
        std::function<void()> write_rows, submit_head;
    };
    // All references outlive this object. `ops` are those of the only lane.
    PagedSteps(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
               const DecoderMemory& memory, const DecoderOps& ops, EvictedPages& store);
    ~PagedSteps();
    PagedSteps(const PagedSteps&) = delete;
    Status create();  // makes the buffers; call it once

    // Each call waits for the work before it, and returns at once.
    void run(Step step);
    // Calls `done` when all steps so far are submitted, or one has failed. Steps behind a failure
    // are dropped until shorten(0).
    void when_done(std::function<void(Status)> done);
    // Forgets the pages from `num_pages` on.
    void shorten(std::uint32_t num_pages);
    // Write a page, and read it: the bytes of all layers in the GPU's layout, as in EvictedPages.
    void put(std::uint32_t page, Bytes bytes);
    void get(std::uint32_t page, std::function<void(Result<ByteView>)> done);

    const WorkingSet& working_set() const { return set_; }

  private:
    using Next = std::function<void()>;
    void add(Next work);
    void begin_next();
    void fail(const Error& error);
    void begin_step();
    void move(const WorkingSet::Move& move, Next next);
    void store(const WorkingSet::Move& move, Next next);
    void read_slot(std::uint32_t slot, std::function<void(Result<ByteView>)> done);
    void read_layers(std::uint32_t page, std::uint32_t first,
                     std::function<void(std::uint32_t, ByteView)> take, Next next);
    void write_table(std::span<const std::uint32_t> slots);
    void layer(std::uint32_t index);
    void stage(std::uint32_t index, std::size_t first);
    void end_layer(std::uint32_t index);

    gpu::Device& device_;
    const DecoderModel& model_;
    const DecoderMemory& memory_;
    const DecoderOps& ops_;
    EvictedPages& store_;
    WorkingSet set_;
    const std::uint64_t layer_bytes_;  // of a page

    std::deque<Next> waiting_;  // work behind the one that runs
    bool is_busy_ = false;
    Status problem_;                      // of the first step that failed
    Step step_;                           // that runs
    std::vector<std::uint32_t> evicted_;  // pages that the present layer stages
    std::vector<gpu::Command> commands_;
    gpu::BufferId page_readback_, fence_readback_;
    bool has_fence_ = false;  // fence_readback_ is a target of a copy that was not read yet
    Bytes page_bytes_;
    LifeGuard life_;
};

}  // namespace moex
