#include "web-worker/decoder/gpu_decoder.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"
#include "web-worker/decoder/copy_command.h"

namespace moex {

GpuDecoder::GpuDecoder(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes)
    : device_(device),
      model_(model),
      sizes_(sizes) {}

GpuDecoder::~GpuDecoder() {
    for (const gpu::BufferId buffer :
         {id_readbacks_[0], id_readbacks_[1], logit_readback_, likeliest_readback_, span_readback_})
        device_.destroy_buffer(buffer);
    for (const gpu::BufferId buffer :
         {page_readback_, state_readback_, rows_readback_, kv_readback_})
        if (buffer != gpu::BufferId{}) device_.destroy_buffer(buffer);
    for (const Lane& lane : lanes_) device_.destroy_buffer(lane.routed_readback);
}

std::uint32_t GpuDecoder::rows_max(std::uint32_t num_pages) const {
    const std::uint64_t fit = sizes_.part_slots / std::max(1u, num_pages);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(fit / 8 * 8, sizes_.rows));
}

void GpuDecoder::write_rows(std::span<const StepRow> rows, std::uint32_t head_row,
                            std::uint32_t part_pages, std::uint32_t lane) {
    // Leave out the last header word, the count of chosen tokens: only the GPU writes it.
    const std::uint32_t header[] = {head_row, static_cast<std::uint32_t>(rows.size()), part_pages};
    device_.write_buffer(memory_->lanes[lane].rows, 0, std::as_bytes(std::span(header)));
    device_.write_buffer(memory_->lanes[lane].rows, sizeof(std::uint32_t) * step_header_words,
                         std::as_bytes(rows));
}

std::uint32_t GpuDecoder::num_loaded() const {
    std::uint32_t layer = 0;
    while (layer < model_.num_layers && memory_->holds_layer(layer)) ++layer;
    return layer;
}

Status GpuDecoder::load_layer(std::uint32_t layer, WeightSource& source) {
    MOEX_CHECK(layer < model_.num_layers, text("layer ", layer, " of ", model_.num_layers));
    MOEX_TRY(memory_->load_layer(layer, source));
    advance_early();
    return {};
}

Status GpuDecoder::begin_early(TokenIds tokens, std::function<void(std::uint32_t)> on_layers,
                               const DeltaRun* run) {
    MOEX_CHECK(reads_early(), "this decoder reads a prompt when it has all layers");
    const auto num_rows = static_cast<std::uint32_t>(tokens.size());
    if (num_rows == 0 || num_rows > rows_max() || num_tokens_ + num_rows > context_tokens())
        return Error{ErrorCode::invalid_argument,
                     text(num_rows, " tokens to read early, want 1 to ", rows_max())};
    for (const std::uint32_t token : tokens)
        if (token >= model_.vocab_size)
            return Error{ErrorCode::invalid_argument,
                         text("token ", token, ", the vocabulary has ", model_.vocab_size)};

    if (!early_) {
        early_.emplace(device_, *memory_, ops());
        if (const Status made = early_->create(); !made.ok()) {
            early_.reset();
            return made.error();
        }
    }
    rows_.clear();
    for (std::uint32_t i = 0; i < num_rows; ++i) rows_.push_back({tokens[i], num_tokens_ + i});
    const std::uint32_t num_pages = pages_at(num_tokens_ + num_rows - 1);
    write_rows(rows_, num_rows - 1, num_pages);
    write_only_run(run, num_rows);
    commands_.clear();
    ops().append_embed(commands_, num_rows);
    device_.submit(commands_);
    early_->begin(num_rows, num_pages, std::move(on_layers));
    advance_early();
    return {};
}

// Computes the layers that are loaded by now.
void GpuDecoder::advance_early() {
    if (early_) num_tokens_ += early_->advance(num_loaded(), model_.num_layers);
}

Status GpuDecoder::feed(TokenIds tokens, StepLogits logits, const DeltaRun* run) {
    MOEX_TRY(check_tokens(*this, tokens));
    const auto num_rows = static_cast<std::uint32_t>(tokens.size());
    const bool by_list = logits == StepLogits::likeliest || logits == StepLogits::every_likeliest,
               of_all = logits == StepLogits::every || logits == StepLogits::every_likeliest;
    const std::uint32_t num_logits = logits == StepLogits::none ? 0 : of_all ? num_rows : 1;
    if (by_list && !sizes_.likeliest)
        return Error{ErrorCode::invalid_argument, "this decoder has no room for likeliest tokens"};
    if (num_logits > sizes_.logit_rows)
        return Error{ErrorCode::invalid_argument,
                     text("logits of ", num_logits, " rows, this decoder keeps those of ",
                          sizes_.logit_rows)};
    num_logits_ = num_logits;
    num_likeliest_ = by_list ? num_logits : 0;

    rows_.clear();
    for (std::uint32_t i = 0; i < num_rows; ++i) rows_.push_back({tokens[i], num_tokens_ + i});
    const std::uint32_t num_pages = pages_at(num_tokens_ + num_rows - 1);
    const std::uint32_t head_row = of_all ? 0 : num_rows - 1;
    num_tokens_ += num_rows;
    has_choice_ = false;
    if (paged_) {
        run_paged(head_row, num_pages);
        return {};
    }
    write_rows(rows_, head_row, num_pages);
    write_only_run(run, num_rows);
    commands_.clear();
    ops().append_pass(commands_, num_rows, num_pages, num_logits_);
    if (num_likeliest_ > 0) append_likeliest(num_likeliest_);
    device_.submit(commands_);
    return {};
}

// Computes the rows in `rows_` behind the steps before, layer by layer.
void GpuDecoder::run_paged(std::uint32_t head_row, std::uint32_t num_pages) {
    const auto rows = std::make_shared<std::vector<StepRow>>(rows_);
    paged_->run({.rows = rows_,
                 .num_pages = num_pages,
                 .write_rows = [=, this] { write_rows(*rows, head_row, num_pages); },
                 .submit_head =
                     [this, logits = num_logits_, lists = num_likeliest_] {
                         commands_.clear();
                         ops().append_head(commands_, logits);
                         if (lists > 0) append_likeliest(lists);
                         if (!commands_.empty()) device_.submit(commands_);
                     }});
}

void GpuDecoder::choose() {
    MOEX_CHECK(num_logits_ == 1 && !is_paged(),
               "choose() follows a step with the last token's logits, with all pages in memory");
    commands_.clear();
    ops().append_choice(commands_);
    device_.submit(commands_);
    ++num_chosen_;
    has_choice_ = true;
}

// Returns the commands of a greedy step. They stay the same until the sequence reaches another
// page.
const std::vector<gpu::Command>& GpuDecoder::greedy_commands(std::uint32_t num_pages) const {
    if (greedy_pages_ != num_pages) {
        greedy_.clear();
        ops().append_pass(greedy_, 1, num_pages, 1);
        ops().append_choice(greedy_);
        greedy_pages_ = num_pages;
    }
    return greedy_;
}

Status GpuDecoder::step() {
    MOEX_CHECK(has_choice_ && sizes_.journals == 0, "step() follows choose(), without a journal");
    if (num_unread() >= sizes_.ring_ids)
        return Error{ErrorCode::overloaded, "the ring is full of unread tokens"};
    if (num_tokens_ == context_tokens())
        return Error{ErrorCode::invalid_argument,
                     text("the cache's ", context_tokens(), " tokens are full")};

    device_.submit(greedy_commands(pages_at(num_tokens_)));
    ++num_tokens_;
    ++num_chosen_;
    return {};
}

std::uint32_t GpuDecoder::dispatches_of_a_step() const {
    return static_cast<std::uint32_t>(greedy_commands(pages_at(num_tokens_)).size());
}

void GpuDecoder::read_chosen(std::uint32_t count, std::function<void(Result<TokenIds>)> done) {
    MOEX_CHECK(count > 0 && count <= num_unread() && count <= sizes_.ring_ids / 2,
               text(count, " of ", num_unread(), " chosen tokens"));
    const gpu::BufferId readback = id_readbacks_[next_readback_];
    next_readback_ = (next_readback_ + 1) % num_readbacks;

    const std::uint64_t word = sizeof(std::uint32_t);
    const std::uint32_t first = num_read_ % sizes_.ring_ids,
                        before_wrap = std::min(count, sizes_.ring_ids - first);
    commands_.clear();
    commands_.push_back(copy_command(memory_->ids, word * first, readback, 0, word * before_wrap));
    if (before_wrap < count)
        commands_.push_back(copy_command(memory_->ids, 0, readback, word * before_wrap,
                                         word * (count - before_wrap)));
    device_.submit(commands_);
    num_read_ += count;

    device_.read_buffer(
        readback, word * count,
        [count, done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return done(bytes.error());
            done(TokenIds(reinterpret_cast<const std::uint32_t*>(bytes->data()), count));
        });
}

void GpuDecoder::read_logits(std::function<void(Result<std::span<const float>>)> done) {
    MOEX_CHECK(num_logits_ > num_likeliest_, "the last step had no logits to read");
    const std::uint32_t first = num_likeliest_, count = num_logits_ - num_likeliest_;
    if (!paged_) return copy_logits(first, count, std::move(done));
    // Another step may begin before this one is computed.
    paged_->when_done([this, first, count, done = std::move(done)](Status computed) {
        if (!computed.ok()) return done(computed.error());
        copy_logits(first, count, done);
    });
}

void GpuDecoder::copy_logits(std::uint32_t first, std::uint32_t count,
                             std::function<void(Result<std::span<const float>>)> done) {
    const std::uint64_t row_bytes = sizeof(float) * std::uint64_t{model_.vocab_size},
                        size_bytes = row_bytes * count;
    const gpu::Command copy = copy_command(memory_->logits, row_bytes * first, logit_readback_, 0,
                                           size_bytes);
    device_.submit(std::span(&copy, 1));
    device_.read_buffer(logit_readback_, size_bytes,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return done(bytes.error());
                            done(std::span(reinterpret_cast<const float*>(bytes->data()),
                                           bytes->size() / sizeof(float)));
                        });
}

void GpuDecoder::start(const DecoderBatch& batch, std::uint32_t lane) {
    Lane& mine = lanes_[lane];
    mine.rows = static_cast<std::uint32_t>(batch.rows.size());
    mine.pages = batch.num_pages;
    mine.num_logits = batch.num_logits;
    mine.num_likeliest = batch.num_likeliest;
    mine.next_layer = 0;
    mine.is_whole = false;
    mine.reads_rows = batch.reads_rows;
    MOEX_CHECK(mine.rows > 0 && mine.rows <= rows_max(mine.pages) &&
                   mine.num_logits <= std::min(mine.rows, sizes_.logit_rows) &&
                   mine.num_likeliest <= mine.num_logits &&
                   (sizes_.reads_rows || !mine.reads_rows) &&
                   batch.pages.size() <= sizes_.table_entries,
               text(mine.rows, " rows of ", mine.pages, " pages, ", mine.num_logits,
                    " of them with logits"));

    write_rows(batch.rows, mine.rows - mine.num_logits, mine.pages, lane);
    if (model_.has_delta()) write_runs(batch.runs, lane);
    device_.write_buffer(memory_->lanes[lane].page_table, 0, std::as_bytes(batch.pages));
    if (sizes_.window_slots == 0) return;
    MOEX_CHECK(batch.window_pages.size() == batch.pages.size(), "a page has no slot");
    device_.write_buffer(memory_->lanes[lane].window_table, 0, std::as_bytes(batch.window_pages));
}

// Writes the run of a step of one sequence, if there is a journal.
void GpuDecoder::write_only_run(const DeltaRun* run, std::uint32_t num_rows) {
    MOEX_CHECK((run != nullptr) == (sizes_.journals > 0), "a step with a journal has a run");
    if (run == nullptr) return;
    lanes_.front().rows = num_rows;
    write_runs({run, 1}, 0);
}

// Gives each run its place among the rows of all runs. The kernels do not check the numbers.
void GpuDecoder::write_runs(std::span<const DeltaRun> runs, std::uint32_t lane) {
    std::vector<DeltaRun>& mine = lanes_[lane].runs;
    mine.assign(runs.begin(), runs.end());
    const auto is_slot = [&](std::uint32_t slot) { return slot < sizes_.state_slots; };
    std::uint32_t at = 0, num_rows = 0;
    for (DeltaRun& run : mine) {
        const bool stores = (run.store_after[0] == 0 || is_slot(run.to_slots[0])) &&
                            (run.store_after[1] == 0 || is_slot(run.to_slots[1]));
        MOEX_CHECK(stores && (run.from_slot == DeltaRun::no_slot || is_slot(run.from_slot)) &&
                       run.journal < sizes_.journals && run.num_first <= run.num_rows &&
                       run.num_replayed <= DeltaRun::replayed_max,
                   text("a run of ", run.num_replayed, " and ", run.num_rows, " rows"));
        run.mixed_at = at;
        at += run.num_replayed + run.num_rows;
        num_rows += run.num_rows;
    }
    MOEX_CHECK(num_rows == lanes_[lane].rows && mine.size() <= sizes_.journals,
               text(mine.size(), " runs have ", num_rows, " of ", lanes_[lane].rows, " rows"));
    lanes_[lane].num_runs = static_cast<std::uint32_t>(mine.size());
    device_.write_buffer(memory_->lanes[lane].runs, 0, std::as_bytes(std::span(mine)));
}

std::uint32_t GpuDecoder::advance_to(std::uint32_t end_layer, std::uint32_t lane) {
    Lane& mine = lanes_[lane];
    MOEX_CHECK(
        mine.next_layer <= end_layer && (end_layer == model_.num_layers ||
                                         (end_layer < model_.num_layers && sizes_.sends_layers)),
        text("from layer ", mine.next_layer, " to layer ", end_layer));
    commands_.clear();
    if (mine.next_layer == 0 && !mine.is_whole) mine.ops->append_embed(commands_, mine.rows);
    std::uint32_t waiting = end_layer;
    while (waiting == end_layer && mine.next_layer < end_layer) {
        const std::uint32_t layer = mine.next_layer++;
        mine.ops->append_layer(commands_, layer, mine.rows, mine.pages, mine.num_runs,
                               std::exchange(mine.is_whole, false));
        if (model_.is_moe(layer) && model_.experts_elsewhere) waiting = layer;
    }
    const std::uint64_t x_bytes = sizeof(float) * std::uint64_t{mine.rows} * model_.hidden_size;
    if (waiting < end_layer) {
        const gpu::BufferId to = mine.routed_readback;
        commands_.push_back(copy_command(memory_->y, 0, to, 0, x_bytes));
        commands_.push_back(
            copy_command(memory_->routes, 0, to, x_bytes,
                         2 * sizeof(std::uint32_t) * std::uint64_t{mine.rows} * model_.top_k));
        commands_.back().same_stage = true;
    } else if (end_layer < model_.num_layers) {
        mine.ops->append_addition(commands_, end_layer, mine.rows, mine.is_whole);
        mine.is_whole = true;
        commands_.push_back(copy_command(memory_->lanes[lane].x, 0, rows_readback_, 0, x_bytes));
    } else {
        append_end_of_pass(lane);
    }
    device_.submit(commands_);
    commands_.clear();
    return waiting;
}

void GpuDecoder::append_end_of_pass(std::uint32_t lane) {
    Lane& mine = lanes_[lane];
    MOEX_CHECK(!mine.is_whole, "the last layer of a pass is computed here");
    num_logits_ = mine.num_logits;
    num_likeliest_ = mine.num_likeliest;
    if (mine.reads_rows) {
        mine.ops->append_final_norm(commands_, mine.rows);
        commands_.push_back(
            copy_command(memory_->y, 0, rows_readback_, 0,
                         sizeof(float) * std::uint64_t{mine.rows} * model_.hidden_size));
    }
    mine.ops->append_head(commands_, num_logits_, mine.reads_rows);
    if (num_likeliest_ > 0) append_likeliest(num_likeliest_);
}

void GpuDecoder::append_likeliest(std::uint32_t num_lists) {
    ops().append_likeliest(commands_, num_lists);
    commands_.push_back(copy_command(memory_->likeliest, ops().likeliest_at(), likeliest_readback_,
                                     0, sizeof(LikeliestList) * num_lists));
}

void GpuDecoder::read_rows(std::function<void(Result<std::span<const float>>)> done,
                           std::uint32_t lane) {
    const Lane& mine = lanes_[lane];
    MOEX_CHECK(mine.reads_rows && mine.next_layer == model_.num_layers,
               "the batch has no rows to read");
    device_.read_buffer(rows_readback_,
                        sizeof(float) * std::uint64_t{mine.rows} * model_.hidden_size,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return done(bytes.error());
                            done(std::span(reinterpret_cast<const float*>(bytes->data()),
                                           bytes->size() / sizeof(float)));
                        });
}

void GpuDecoder::read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done) {
    MOEX_CHECK(num_likeliest_ > 0, "the last step computed no likeliest tokens");
    if (!paged_) return copy_likeliest(num_likeliest_, std::move(done));
    paged_->when_done([this, count = num_likeliest_, done = std::move(done)](Status computed) {
        if (!computed.ok()) return done(computed.error());
        copy_likeliest(count, done);
    });
}

void GpuDecoder::copy_likeliest(std::uint32_t count,
                                std::function<void(Result<std::span<const LikeliestList>>)> done) {
    device_.read_buffer(
        likeliest_readback_, sizeof(LikeliestList) * count,
        [count, done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return done(bytes.error());
            done(std::span(reinterpret_cast<const LikeliestList*>(bytes->data()), count));
        });
}

void GpuDecoder::read_routed(std::function<void(Result<RoutedRows>)> done, std::uint32_t lane) {
    const Lane& mine = lanes_[lane];
    const std::size_t num_floats = std::size_t{mine.rows} * model_.hidden_size,
                      num_words = std::size_t{2} * mine.rows * model_.top_k;
    device_.read_buffer(
        mine.routed_readback, sizeof(float) * (num_floats + num_words),
        [num_floats, num_words, done = std::move(done),
         life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return done(bytes.error());
            const std::byte* const words = bytes->data() + sizeof(float) * num_floats;
            done(RoutedRows{{reinterpret_cast<const float*>(bytes->data()), num_floats},
                            {reinterpret_cast<const std::uint32_t*>(words), num_words}});
        });

    // The rows that were read do not wait for the shared expert, which is submitted behind them.
    const std::uint32_t layer = mine.next_layer - 1;
    if (!model_.shared_is_apart(layer)) return;
    commands_.clear();
    mine.ops->append_shared(commands_, layer, mine.rows);
    device_.submit(commands_);
    commands_.clear();
}

void GpuDecoder::answer(std::span<const float> y, std::uint32_t lane) {
    MOEX_CHECK(y.size() == std::size_t{lanes_[lane].rows} * model_.hidden_size,
               text(y.size(), " values for ", lanes_[lane].rows, " rows"));
    device_.write_buffer(memory_->lanes[lane].addends, 0, std::as_bytes(y));
}

void GpuDecoder::rewind(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens <= num_tokens_, text(num_tokens, " of ", num_tokens_, " tokens"));
    if (early_) early_->drop();
    // A recurrent state cannot forget single tokens.
    if (!goes_back() && num_tokens < num_tokens_) num_tokens = 0;
    num_tokens_ = num_tokens;
    if (paged_) paged_->shorten((num_tokens + kv_page_tokens - 1) / kv_page_tokens);
    num_read_ = num_chosen_;
    num_logits_ = 0;
    has_choice_ = false;
}

void GpuDecoder::resume(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens <= context_tokens(),
               text(num_tokens, " tokens, the cache has room for ", context_tokens()));
    num_tokens_ = num_tokens;
    rewind(num_tokens);
}

}  // namespace moex
