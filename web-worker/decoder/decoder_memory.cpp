#include "web-worker/decoder/decoder_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "protocol/text.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {
namespace {

// The alignment in bytes of the offset of a uniform binding and of a storage binding.
constexpr std::uint64_t binding_align = 256;
// A table is cut at a multiple of this number of rows, so that the logits after the cut begin at an
// aligned offset.
constexpr std::uint32_t shard_rows_align = binding_align / sizeof(float);

}  // namespace

DecoderMemory::~DecoderMemory() {
    for (const gpu::BufferId buffer : owned_) device_.destroy_buffer(buffer);
}

// Makes the buffers of a DecoderMemory: begin(), then each layer, then finish().
class MemoryBuilder {
  public:
    MemoryBuilder(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
                  WeightSource& source, DecoderMemory& memory)
        : device_(device),
          model_(model),
          sizes_(sizes),
          source_(source),
          memory_(memory) {}

    std::uint32_t num_layers() const { return model_.num_layers; }
    WeightSource& source() { return source_; }

    Status begin() {
        memory_.layers.resize(model_.num_layers);
        memory_.absent_.resize(model_.num_layers);
        MOEX_TRY(make_step_buffers());
        MOEX_TRY(make_vectors());
        MOEX_TRY(make_places());
        if (!model_.is_span)
            MOEX_TRY(make_table(WeightPart::Name::embedding_rows, memory_.embeddings));
        return {};
    }

    Status make_layer(std::uint32_t index) {
        using Name = WeightPart::Name;
        DecoderMemory::Layer& layer = memory_.layers[index];
        MOEX_TRY(make_matrix(layer.qkv, model_.attention_kind, model_.mixer_rows(index),
                             model_.hidden_size, {.name = Name::qkv, .layer = index}, "qkv"));
        MOEX_TRY(make_matrix(layer.o, model_.attention_kind, model_.hidden_size,
                             model_.mixed_size(index), {.name = Name::o, .layer = index}, "o"));
        if (model_.is_delta(index))
            MOEX_TRY(make_matrix(layer.delta_gates, WeightKind::f32, 2 * model_.delta_value_heads,
                                 model_.hidden_size, {.name = Name::delta_gates, .layer = index},
                                 "gates of a delta rule"));
        else if (model_.output_gate)
            MOEX_TRY(make_matrix(layer.output_gate, model_.attention_kind, model_.q_size(),
                                 model_.hidden_size, {.name = Name::output_gate, .layer = index},
                                 "output gate"));
        if (model_.is_moe(index))
            MOEX_TRY(make_matrix(layer.router, model_.router_kind, model_.router_rows(),
                                 model_.hidden_size, {.name = Name::router, .layer = index},
                                 "router"));
        if (!holds_ffn(model_, index))
            return model_.shared_is_apart(index) ? make_shared(index) : Status{};

        const std::uint64_t size_bytes = blob_bytes(index);
        const std::uint32_t num_experts = model_.is_moe(index) ? model_.num_experts : 1,
                            step = experts_of_an_arena(index);
        for (std::uint32_t first = 0; first < num_experts; first += step) {
            DecoderMemory::Arena arena;
            arena.first_expert = first;
            arena.num_experts = std::min(step, num_experts - first);
            MOEX_TRY(make(arena.buffer, arena.num_experts * size_bytes, "experts"));
            for (std::uint32_t i = 0; i < arena.num_experts; ++i)
                MOEX_TRY(upload(arena.buffer, i * size_bytes, size_bytes,
                                {.name = Name::ffn, .layer = index, .expert = first + i}));
            MOEX_ASSIGN(place, add_place(ArenaPlace{first, arena.num_experts,
                                                    static_cast<std::uint32_t>(size_bytes / 4)}));
            arena.place = place;
            layer.arenas.push_back(arena);
            if (model_.is_moe(index))
                MOEX_TRY(source_.placed({index, first, arena.num_experts, arena.buffer,
                                         [&owned = memory_.owned_, buffer = arena.buffer] {
                                             std::erase(owned, buffer);
                                         }}));
        }
        return model_.is_moe(index) && model_.shared_size > 0 ? make_shared(index) : Status{};
    }

    // Makes what follows the last layer.
    Status finish() {
        if (model_.is_span || model_.tied_embeddings)
            memory_.head = memory_.embeddings;
        else
            MOEX_TRY(make_table(WeightPart::Name::head_rows, memory_.head));
        return write_places();
    }

  private:
    Status make(gpu::BufferId& out, std::uint64_t size_bytes, const char* label,
                gpu::BufferUsage usage = gpu::BufferUsage::storage) {
        size_bytes = std::max<std::uint64_t>(size_bytes, 16);
        if (size_bytes > sizes_.binding_bytes)
            return Error{ErrorCode::no_space,
                         text(label, " needs ", size_bytes, " bytes, a binding of ",
                              device_.adapter().description, " holds ", sizes_.binding_bytes)};
        MOEX_ASSIGN(buffer, device_.create_buffer(size_bytes, usage, label));
        memory_.owned_.push_back(buffer);
        out = buffer;
        return {};
    }

    Status upload(gpu::BufferId buffer, std::uint64_t at, std::uint64_t size_bytes,
                  const WeightPart& part) {
        const DecoderMemory::Absent place{buffer, at, size_bytes, part};
        if (source_.is_here(part)) return memory_.upload(place, source_);
        memory_.absent_[part.layer].push_back(place);
        return {};
    }

    std::uint64_t blob_bytes(std::uint32_t layer) const {
        return expert_blob_layout(model_.ffn_shape(layer), expert_dtype_of(model_.ffn_kind(layer)))
            .size_bytes;
    }
    std::uint32_t experts_of_an_arena(std::uint32_t layer) const {
        return static_cast<std::uint32_t>(
            std::max<std::uint64_t>(1, sizes_.weight_buffer_bytes / blob_bytes(layer)));
    }

    Status make_matrix(gpu::BufferId& out, WeightKind kind, std::uint32_t num_out,
                       std::uint32_t num_in, const WeightPart& part, const char* label) {
        const std::uint64_t size_bytes =
            matrix_layout(kind, num_out, num_in, model_.group_size).size_bytes;
        MOEX_TRY(make(out, size_bytes, label));
        return upload(out, 0, size_bytes, part);
    }

    Status make_step_buffers() {
        namespace group_pairs = gpu::kernels::group_pairs;
        const std::uint64_t rows = sizes_.rows, hidden = model_.hidden_size, word = 4;
        const std::uint64_t pairs = rows * std::max(1u, model_.routes_per_row());
        const std::uint64_t stretches = (model_.vocab_size +
                                         gpu::kernels::argmax_part::stretch_tokens - 1) /
                                        gpu::kernels::argmax_part::stretch_tokens;

        MOEX_TRY(make_lanes());
        MOEX_TRY(make(memory_.ids, word * sizes_.ring_ids, "chosen ids"));
        MOEX_TRY(make(memory_.best, 2 * word * stretches, "best tokens"));
        MOEX_TRY(make(memory_.logits, word * sizes_.logit_rows * model_.vocab_size, "logits"));
        MOEX_TRY(make(memory_.likeliest, DecoderMemory::likeliest_bytes(model_, sizes_),
                      "likeliest tokens"));
        MOEX_TRY(make(memory_.y, word * rows * hidden, "y"));
        MOEX_TRY(make(memory_.y_transposed, word * rows * hidden, "y transposed"));
        MOEX_TRY(make(memory_.qkv, word * rows * model_.mixer_rows_max(), "q, k and v"));
        MOEX_TRY(make(memory_.q, word * rows * model_.q_size(), "q"));
        MOEX_TRY(
            make(memory_.parts, sizes_.part_slots * part_slot_bytes(model_), "attention parts"));
        MOEX_TRY(make(memory_.peaks, 2 * word * sizes_.part_slots * model_.num_heads, "peaks"));
        MOEX_TRY(make(memory_.attended, word * rows * model_.mixed_size_max(), "attended"));
        if (model_.output_gate)
            MOEX_TRY(make(memory_.output_gates, word * rows * model_.q_size(), "output gates"));
        if (model_.has_delta()) {
            MOEX_TRY(
                make(memory_.mixed, word * mixed_rows(sizes_) * model_.delta_channels(), "mixed"));
            MOEX_TRY(make(memory_.delta_gates, 2 * word * rows * model_.delta_value_heads,
                          "gates of delta rules"));
            MOEX_TRY(make(memory_.delta_values, word * rows * model_.delta_values(),
                          "values of delta rules"));
        }
        MOEX_TRY(make(memory_.router_logits, word * rows * model_.router_rows(), "router logits"));
        MOEX_TRY(make(memory_.routes, 2 * word * pairs, "routes"));
        MOEX_TRY(make(memory_.dense_routes, 2 * word * rows, "dense routes"));
        if (shared_is_apart(model_))
            MOEX_TRY(make(memory_.shared_routes, 2 * word * rows, "shared routes"));
        const std::uint64_t tiles = DecoderMemory::tiles_max(
            static_cast<std::uint32_t>(pairs), std::max(1u, model_.experts_routed_to()));
        MOEX_TRY(make(memory_.tiles,
                      word * (group_pairs::tiles_word + tiles * (2 + 2 * group_pairs::tile_rows)),
                      "tiles of pairs"));
        MOEX_TRY(make(memory_.intermediate, word * rows * inner_size(model_), "intermediate"));
        MOEX_TRY(make(memory_.shared_intermediate, word * rows * shared_inner_size(model_),
                      "intermediate of shared experts"));

        MOEX_TRY(make_copied_rows());
        for (std::uint32_t index = 0; index < model_.num_layers; ++index)
            MOEX_TRY(make_memory_of_sequences(index));
        return fill_tables();
    }

    Status make_lanes() {
        const std::uint64_t rows = sizes_.rows, hidden = model_.hidden_size, word = 4;
        memory_.lanes.resize(sizes_.lanes);
        for (DecoderMemory::Lane& lane : memory_.lanes) {
            MOEX_TRY(make(lane.rows, word * step_header_words + sizeof(StepRow) * rows, "rows"));
            MOEX_TRY(make(lane.page_table, word * sizes_.table_entries, "page table"));
            lane.window_table = lane.page_table;
            if (sizes_.window_slots > 0)
                MOEX_TRY(make(lane.window_table, word * sizes_.table_entries, "window table"));
            if (sizes_.journals > 0) MOEX_TRY(make(lane.runs, sizeof(DeltaRun) * rows, "runs"));
            MOEX_TRY(make(lane.x, word * rows * hidden, "x"));
            MOEX_TRY(make(lane.addends, word * rows * addends_max(model_) * hidden, "addends"));
            if (shared_is_apart(model_))
                MOEX_TRY(make(lane.shared, word * rows * hidden, "rows of shared experts"));
        }
        return {};
    }

    // Makes the buffers through which keys and values of single rows are copied.
    Status make_copied_rows() {
        const std::uint64_t rows = sizes_.rows, word = 4;
        if (model_.is_span || sizes_.sends_layers)
            MOEX_TRY(make(memory_.span_kv,
                          DecoderMemory::span_kv_at(model_, model_.num_layers, rows),
                          "keys and values of rows"));
        if (sizes_.sends_layers) {
            MOEX_TRY(make(memory_.copied_rows, word * step_header_words + sizeof(StepRow) * rows,
                          "copied rows"));
            MOEX_TRY(make(memory_.copied_pages, word * sizes_.table_entries, "their page tables"));
            memory_.copied_window_pages = memory_.copied_pages;
            if (sizes_.window_slots > 0)
                MOEX_TRY(make(memory_.copied_window_pages, word * sizes_.table_entries,
                              "their window tables"));
        }
        return {};
    }

    Status make_memory_of_sequences(std::uint32_t index) {
        DecoderMemory::Layer& layer = memory_.layers[index];
        if (!model_.is_delta(index)) {
            const std::uint64_t bytes = DecoderMemory::kv_page_bytes(model_, sizes_.kv_kind) *
                                        DecoderMemory::pages_of(model_, sizes_, index);
            memory_.kv_bytes += bytes;
            return make(layer.kv, bytes, "keys and values");
        }
        const std::uint64_t slots = sizes_.state_slots,
                            states = slots * sizeof(float) * model_.delta_state_size(),
                            columns = slots * DecoderMemory::state_bytes(model_) - states,
                            journals = sizes_.journals * DecoderMemory::journal_bytes(model_);
        memory_.state_bytes_all += states + columns + journals;
        MOEX_TRY(make(layer.state, states, "states of a delta rule"));
        MOEX_TRY(make(layer.columns, columns, "inputs of a convolution"));
        if (journals == 0) return {};
        return make(layer.journal, journals, "rows that may be rolled back");
    }

    // Fills the tables that are known before the first step: the pages of a single sequence in
    // order, routes that treat a dense layer as a single expert, and the angles of all positions,
    // rounded like in the reference.
    Status fill_tables() {
        std::vector<std::uint32_t> pages(std::min(sizes_.row_pages, sizes_.pages));
        for (std::uint32_t i = 0; i < pages.size(); ++i) pages[i] = i;
        device_.write_buffer(memory_.lanes.front().page_table, 0, std::as_bytes(std::span(pages)));

        std::vector<float> routes(2 * sizes_.rows);
        for (std::uint32_t row = 0; row < sizes_.rows; ++row) routes[2 * row + 1] = 1;
        device_.write_buffer(memory_.dense_routes, 0, std::as_bytes(std::span(routes)));

        const std::size_t rotated = model_.rotated(), half_size = rotated / 2,
                          positions = std::size_t{sizes_.row_pages} * kv_page_tokens;
        std::vector<float> cos_sin(positions * rotated);
        const std::vector<float> frequencies = rope_frequencies(model_.rotated(), model_.rope_theta,
                                                                model_.rope_scaling);
        const float amplitude = rope_amplitude(model_.rope_scaling);
        for (std::size_t i = 0; i < half_size; ++i) {
            for (std::size_t position = 0; position < positions; ++position) {
                const float angle = static_cast<float>(position) * frequencies[i];
                cos_sin[position * rotated + i] = std::cos(angle) * amplitude;
                cos_sin[position * rotated + half_size + i] = std::sin(angle) * amplitude;
            }
        }
        MOEX_TRY(make(memory_.cos_sin, sizeof(float) * cos_sin.size(), "angles"));
        device_.write_buffer(memory_.cos_sin, 0, std::as_bytes(std::span(cos_sin)));
        return {};
    }

    // Appends a vector of the model, or zeros if the model has no such vector. The buffer of the
    // binding `out` is set later, when all vectors have been added.
    Status add_vector(gpu::Binding& out, WeightPart part, std::uint64_t size, bool exists = true) {
        out.offset_bytes = sizeof(float) * vectors_.size();
        out.size_bytes = sizeof(float) * size;
        bound_vectors_.push_back(&out);
        const std::size_t first = vectors_.size();
        vectors_.resize((first + size + shard_rows_align - 1) / shard_rows_align *
                        shard_rows_align);
        return exists ? read_vector(part, std::span(vectors_).subspan(first, size)) : Status{};
    }
    Status read_vector(const WeightPart& part, std::span<float> out) {
        const std::span<std::byte> bytes = std::as_writable_bytes(out);
        std::size_t given = 0;
        MOEX_TRY(source_.read(part, [&](ByteView view) {
            MOEX_CHECK(given + view.size() <= bytes.size(), "a vector is longer than its layout");
            std::memcpy(bytes.data() + given, view.data(), view.size());
            given += view.size();
        }));
        MOEX_CHECK(given == bytes.size(), "a vector is shorter than its layout");
        return {};
    }

    Status add_delta_vectors(DecoderMemory::Layer& layer, std::uint32_t index) {
        using Name = WeightPart::Name;
        const std::uint64_t heads = model_.delta_value_heads;
        MOEX_TRY(add_vector(layer.delta_conv, {.name = Name::delta_conv, .layer = index},
                            std::uint64_t{model_.delta_channels()} * model_.conv_taps));
        MOEX_TRY(add_vector(layer.delta_a_log, {.name = Name::delta_a_log, .layer = index}, heads));
        MOEX_TRY(
            add_vector(layer.delta_dt_bias, {.name = Name::delta_dt_bias, .layer = index}, heads));
        return add_vector(layer.delta_norm, {.name = Name::delta_norm, .layer = index},
                          model_.delta_value_dim);
    }

    Status make_vectors() {
        using Name = WeightPart::Name;
        const std::uint64_t hidden = model_.hidden_size, norms_size = qk_norm_size(model_),
                            experts = model_.num_experts;
        MOEX_TRY(add_vector(memory_.no_bias, {}, std::max<std::uint64_t>(hidden, 64), false));
        MOEX_TRY(
            add_vector(memory_.final_norm, {.name = Name::final_norm}, hidden, !model_.is_span));
        for (std::uint32_t i = 0; i < model_.num_layers; ++i) {
            DecoderMemory::Layer& layer = memory_.layers[i];
            MOEX_TRY(add_vector(layer.input_norm, {.name = Name::input_norm, .layer = i}, hidden));
            MOEX_TRY(add_vector(layer.post_attention_norm,
                                {.name = Name::post_attention_norm, .layer = i}, hidden));
            if (model_.is_delta(i)) {
                MOEX_TRY(add_delta_vectors(layer, i));
                continue;
            }
            MOEX_TRY(add_vector(layer.qkv_bias, {.name = Name::qkv_bias, .layer = i},
                                model_.qkv_size(), model_.qkv_bias));
            MOEX_TRY(add_vector(layer.o_bias, {.name = Name::o_bias, .layer = i}, hidden,
                                model_.o_bias));
            if (model_.sinks)
                MOEX_TRY(
                    add_vector(layer.sinks, {.name = Name::sinks, .layer = i}, model_.num_heads));
            if (model_.is_moe(i) && model_.router_bias)
                MOEX_TRY(add_vector(layer.router_bias, {.name = Name::router_bias, .layer = i},
                                    model_.router_rows()));
            if (model_.is_moe(i) && model_.sigmoid_router)
                MOEX_TRY(add_vector(layer.correction_bias,
                                    {.name = Name::correction_bias, .layer = i}, experts,
                                    model_.correction_bias));
            MOEX_TRY(add_vector(layer.qk_norms, {}, norms_size, false));
            if (!model_.qk_norm) continue;
            const std::span<float> norms = std::span(vectors_).subspan(
                layer.qk_norms.offset_bytes / sizeof(float), norms_size);
            const std::size_t of_q = model_.qk_norm_all_heads ? model_.q_size() : model_.head_dim;
            MOEX_TRY(read_vector({.name = Name::q_norm, .layer = i}, norms.first(of_q)));
            MOEX_TRY(read_vector({.name = Name::k_norm, .layer = i}, norms.subspan(of_q)));
        }

        gpu::BufferId buffer;
        MOEX_TRY(make(buffer, sizeof(float) * vectors_.size(), "vectors"));
        device_.write_buffer(buffer, 0, std::as_bytes(std::span(vectors_)));
        for (gpu::Binding* bound : bound_vectors_) bound->buffer = buffer;
        return {};
    }

    // Creates the uniforms that describe which part of a table or a layer a buffer holds; each
    // takes 256 bytes.
    Status make_places() {
        std::uint64_t most = 2 * std::uint64_t{model_.vocab_size} / shard_rows_align + 2;
        for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
            most += (model_.is_moe(layer) ? model_.num_experts : 1) / experts_of_an_arena(layer) +
                    2;
        most = std::min<std::uint64_t>(most, 16384);
        places_.reserve(most * binding_align);
        MOEX_ASSIGN(buffer, device_.create_buffer(most * binding_align, gpu::BufferUsage::uniform,
                                                  "places"));
        memory_.owned_.push_back(buffer);
        places_buffer_ = buffer;
        places_max_ = most;
        return {};
    }
    template <class Place>
    Result<gpu::Binding> add_place(const Place& place) {
        const std::size_t at = places_.size();
        if (at / binding_align >= places_max_)
            return Error{ErrorCode::no_space, "the model needs too many buffers"};
        places_.resize(at + binding_align);
        std::memcpy(places_.data() + at, &place, sizeof place);
        return gpu::Binding{places_buffer_, at, sizeof place};
    }
    Status write_places() {
        device_.write_buffer(places_buffer_, 0, places_);
        return {};
    }

    Status make_table(WeightPart::Name name, std::vector<DecoderMemory::Shard>& shards) {
        const auto bytes_of = [&](std::uint32_t num_rows) {
            return matrix_layout(model_.table_kind, num_rows, model_.hidden_size,
                                 model_.group_size);
        };
        const std::uint64_t row_bytes = bytes_of(shard_rows_align).size_bytes / shard_rows_align;
        const auto rows_max = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(model_.vocab_size, sizes_.weight_buffer_bytes / row_bytes));
        const std::uint32_t step = rows_max == model_.vocab_size
                                       ? rows_max
                                       : rows_max / shard_rows_align * shard_rows_align;
        if (step == 0)
            return Error{ErrorCode::no_space,
                         "a binding holds fewer than 64 rows of the embeddings"};

        for (std::uint32_t first = 0; first < model_.vocab_size; first += step) {
            DecoderMemory::Shard shard;
            shard.first_row = first;
            shard.num_rows = std::min(step, model_.vocab_size - first);
            MOEX_TRY(make_matrix(
                shard.buffer, model_.table_kind, shard.num_rows, model_.hidden_size,
                {.name = name, .first_row = first, .num_rows = shard.num_rows}, "table"));
            const auto scales = static_cast<std::uint32_t>(
                bytes_of(shard.num_rows).scale_zero_bytes_at / 4);
            MOEX_ASSIGN(place, add_place(TableShard{first, shard.num_rows, scales, 0}));
            shard.place = place;
            shards.push_back(shard);
        }
        return {};
    }

    // Uploads the shared expert as the expert behind the routed ones, or as the only one.
    Status make_shared(std::uint32_t index) {
        const std::uint64_t size_bytes = shared_blob_bytes(model_);
        DecoderMemory::Arena arena;
        arena.first_expert = model_.routes_to_shared() ? model_.num_experts : 0;
        arena.num_experts = 1;
        MOEX_TRY(make(arena.buffer, size_bytes, "shared expert"));
        MOEX_TRY(upload(arena.buffer, 0, size_bytes,
                        {.name = WeightPart::Name::shared, .layer = index}));
        MOEX_ASSIGN(place, add_place(ArenaPlace{arena.first_expert, 1,
                                                static_cast<std::uint32_t>(size_bytes / 4)}));
        arena.place = place;
        memory_.layers[index].shared.push_back(arena);
        return {};
    }

    gpu::Device& device_;
    const DecoderModel& model_;
    const DecoderSizes& sizes_;
    WeightSource& source_;
    DecoderMemory& memory_;
    std::vector<float> vectors_;
    std::vector<gpu::Binding*> bound_vectors_;
    Bytes places_;
    std::uint64_t places_max_ = 0;
    gpu::BufferId places_buffer_;
};

// A memory that is built as its source gets the layers ready. The source holds it meanwhile, by the
// callback of prepare().
struct DecoderMemory::Build {
    std::unique_ptr<DecoderMemory> memory;
    MemoryBuilder builder;
    Created done;
    std::uint32_t layer = 0;
    bool is_asking = false, is_ready = false;

    // A source that has a layer at hand answers inside prepare(): the loop goes on then.
    static void proceed(const std::shared_ptr<Build>& build) {
        MemoryBuilder& builder = build->builder;
        while (build->layer < builder.num_layers()) {
            if (!build->is_ready) {
                build->is_asking = true;
                builder.source().prepare(build->layer, [build] {
                    build->is_ready = true;
                    if (!build->is_asking) proceed(build);
                });
                build->is_asking = false;
                if (!build->is_ready) return;
            }
            build->is_ready = false;
            if (const Status made = builder.make_layer(build->layer); !made.ok())
                return build->end(made);
            ++build->layer;
        }
        build->end(builder.finish());
    }

    void end(const Status& status) {
        if (status.ok()) return done(std::move(memory));
        memory.reset();
        done(status.error());
    }
};

void DecoderMemory::create(gpu::Device& device, const DecoderModel& model,
                           const DecoderSizes& sizes, WeightSource& source, Created done) {
    std::unique_ptr<DecoderMemory> memory(new DecoderMemory(device));
    MemoryBuilder builder(device, model, sizes, source, *memory);
    const auto build = std::make_shared<Build>(
        Build{std::move(memory), std::move(builder), std::move(done)});
    if (const Status begun = build->builder.begin(); !begun.ok()) return build->end(begun);
    Build::proceed(build);
}

Status DecoderMemory::upload(const Absent& place, WeightSource& source) {
    std::uint64_t given = 0;
    MOEX_TRY(source.read(place.part, [&](ByteView bytes) {
        MOEX_CHECK(given + bytes.size() <= place.size_bytes, "a part is larger than its layout");
        device_.write_buffer(place.buffer, place.at + given, bytes);
        given += bytes.size();
    }));
    MOEX_CHECK(given == place.size_bytes,
               text("a part has ", given, " bytes of ", place.size_bytes));
    weight_bytes += place.size_bytes;
    return {};
}

Status DecoderMemory::load_layer(std::uint32_t layer, WeightSource& source) {
    for (const Absent& place : absent_[layer]) MOEX_TRY(upload(place, source));
    absent_[layer].clear();
    return {};
}

}  // namespace moex
