#include "web-worker/local/local_pages.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "protocol/kv_translate.h"
#include "protocol/text.h"

namespace moex {
namespace {

KvRowType row_type_of(KvKind kind) {
    switch (kind) {
        case KvKind::f32: return KvRowType::f32;
        case KvKind::f16: return KvRowType::f16;
        case KvKind::u8: break;
    }
    return KvRowType::u8;
}

// Copies the rows of the first `num_tokens` tokens from a page of `from_tokens` tokens to a page of
// `to_tokens` tokens.
void copy_rows(const KvSource& source, std::uint32_t num_tokens, ByteView from,
               std::uint32_t from_tokens, std::span<std::byte> to, std::uint32_t to_tokens) {
    const std::size_t row_bytes = kv_row_bytes(source.row_type, source.head_dim),
                      num_slots = std::size_t{2} * source.end_layer * source.num_kv_heads;
    for (std::size_t slot = 0; slot < num_slots; ++slot)
        std::memcpy(to.data() + slot * to_tokens * row_bytes,
                    from.data() + slot * from_tokens * row_bytes, num_tokens * row_bytes);
}

}  // namespace

KvSource local_kv_source(const ModelConfig& config, KvKind kind, const Sha256& manifest,
                         const Sha256& texts) {
    // The hash of the manifest covers the plans of all layers; the first layer's is written out.
    const LayerPlan& plan = config.layers.front();
    const auto has_keys = [](const LayerPlan& one) { return one.mixer != Mixer::gated_delta_rule; };
    KvSource source;
    source.model = manifest;
    source.texts = texts;
    source.arithmetic = KvArithmetic::gpu;
    source.row_type = row_type_of(kind);
    source.end_layer = static_cast<std::uint32_t>(
        std::count_if(config.layers.begin(), config.layers.end(), has_keys));
    source.num_kv_heads = config.num_kv_heads;
    source.head_dim = config.head_dim;
    source.rotary_size = plan.rope.rotary_size > 0 ? plan.rope.rotary_size : config.head_dim;
    source.window = plan.window;
    source.rope_base = plan.rope.theta;
    source.rope_scaling = plan.rope.scaling;
    source.norm_epsilon = config.rms_norm_eps;
    source.page_tokens = kv_page_tokens;
    return source;
}

LocalPages::LocalPages(SequenceDecoder& decoder, const KvSource& source)
    : decoder_(decoder),
      source_(source),
      rows_(kv_rows_bytes(source, kv_page_tokens)) {}

void LocalPages::begin(std::span<const std::uint32_t> prompt, std::uint32_t num_held) {
    prompt_ = prompt;
    num_held_ = num_written_ = num_held;
    next_page_ = num_held / kv_page_tokens;
    if (num_held <= handed_from_) handed_from_ = ~0u;
}

Status LocalPages::check(PageShelf::Origin origin, const Sha256& before, const KvPage& page) const {
    KvSource wanted = source_;
    if (origin == PageShelf::Origin::hub) {
        if (has_states())
            return Error{ErrorCode::unsupported, "KV page: a hub's page has no recurrent state"};
        wanted.arithmetic = page.source.arithmetic;
        wanted.weights = page.source.weights;
        wanted.rounding = page.source.rounding;
        wanted.row_type = page.source.row_type;
    }
    MOEX_TRY(require_source(page.source, wanted));
    const std::uint32_t first = next_page_ * kv_page_tokens;
    // A state is at the end of a page that was written.
    const std::size_t end = page.first_position + page.tokens.size();
    if (page.part == KvPart::state ? end > num_written_ : page.first_position != first)
        return Error{ErrorCode::bad_field,
                     text("KV page: first_position is ", page.first_position, ", wanted ", first)};
    if (page.before != before)
        return Error{ErrorCode::bad_field,
                     text("KV page: before is ", to_hex(page.before), ", wanted ", to_hex(before))};
    if (!page.workers.empty())
        return Error{ErrorCode::bad_field, "KV page: a page of this device names no workers"};
    const bool has_state = !page.state.empty() || page.part == KvPart::state;
    if (has_state && page.state.size() != decoder_.state_bytes())
        return Error{ErrorCode::bad_field, text("KV page: state has ", page.state.size(),
                                                " bytes, wanted ", decoder_.state_bytes())};
    return {};
}

// Returns how many tokens the page and the prompt have in common, from the page's first one on.
std::uint32_t LocalPages::common_tokens(const KvPage& page) const {
    const auto wanted = prompt_.subspan(std::min<std::size_t>(page.first_position, prompt_.size()));
    return static_cast<std::uint32_t>(
        std::mismatch(wanted.begin(), wanted.end(), page.tokens.begin(), page.tokens.end()).first -
        wanted.begin());
}

// Goes on behind a state of which the decoder has all rows before.
PageShelf::Taken LocalPages::take_state(const KvPage& page) {
    using Taken = PageShelf::Taken;
    const auto end = static_cast<std::uint32_t>(page.first_position + page.tokens.size());
    if (end <= num_held_) return Taken::partly;
    if (common_tokens(page) < page.tokens.size()) return Taken::refused;
    if (!decoder_.write_state(end, page.state).ok()) return Taken::refused;
    num_held_ = end;
    return Taken::wholly;
}

PageShelf::Taken LocalPages::take(PageShelf::Origin origin, const Sha256& before, ByteView bytes) {
    using Taken = PageShelf::Taken;
    auto page = decode_kv_page(bytes);
    if (!page.ok() && page.error().code == ErrorCode::unknown_flags)
        page = decode_kv_page(bytes, KvPart::state);
    if (!page.ok() || !check(origin, before, *page).ok()) return Taken::refused;
    if (page->part == KvPart::state) return take_state(*page);

    const std::uint32_t index = next_page_, first = page->first_position,
                        common = common_tokens(*page);
    if (first + common <= num_held_) return Taken::partly;
    // Rows of a page that differs in a token have no state behind them. A page may have its state
    // in itself: older versions kept it there.
    const bool is_whole = common == page->tokens.size(), has_state = !page->state.empty(),
               is_full = common == kv_page_tokens;
    if (has_states() && !is_whole) return Taken::partly;

    OwnedKvPage converted;
    ByteView rows = page->rows;
    if (page->source.row_type != source_.row_type) {
        auto other = convert_kv_rows(*page, source_.row_type);
        if (!other.ok()) return Taken::refused;
        converted = *std::move(other);
        rows = converted.rows;
    }
    const auto num_tokens = static_cast<std::uint32_t>(page->tokens.size());
    std::fill(rows_.begin(), rows_.end(), std::byte{0});
    copy_rows(source_, common, rows, num_tokens, rows_, kv_page_tokens);
    if (!decoder_.write_page(index, rows_).ok()) return Taken::refused;
    if (has_state && !decoder_.write_state(first + common, page->state).ok()) return Taken::refused;
    num_written_ = first + common;
    if (has_state || !has_states()) num_held_ = num_written_;
    if (origin == PageShelf::Origin::hub) handed_from_ = std::min(handed_from_, first);
    if (!is_full) return Taken::partly;
    ++next_page_;
    return Taken::wholly;
}

void LocalPages::read(std::span<const std::uint32_t> tokens, std::uint32_t index, KvPart part,
                      const Sha256& before, std::function<void(Result<Bytes>)> done) {
    const std::size_t first = std::size_t{index} * kv_page_tokens;
    if (first >= tokens.size())
        return done(Error{ErrorCode::invalid_argument,
                          text("page ", index, " of a text of ", tokens.size(), " tokens")});
    const auto own = tokens.subspan(first,
                                    std::min<std::size_t>(kv_page_tokens, tokens.size() - first));
    const auto end = static_cast<std::uint32_t>(first + own.size());
    const bool needs_state = part == KvPart::state || (has_states() && own.size() < kv_page_tokens);
    if (needs_state && !decoder_.keeps_state(end))
        return done(Error{ErrorCode::not_found, text("no state is kept after ", end, " tokens")});
    KvPage page{.source = source_,
                .part = part,
                .before = before,
                .first_position = static_cast<std::uint32_t>(first),
                .tokens = {own.begin(), own.end()}};
    if (part == KvPart::state) return read_state(std::move(page), std::move(done));
    decoder_.read_page(index, rows_,
                       [this, page = std::move(page), done = std::move(done),
                        life = life_.watch()](Status read) mutable {
                           if (!life.alive()) return;
                           if (!read.ok()) return done(read.error());
                           encode(std::move(page), std::move(done));
                       });
}

void LocalPages::read_state(KvPage page, std::function<void(Result<Bytes>)> done) {
    const auto end = static_cast<std::uint32_t>(page.first_position + page.tokens.size());
    const auto state = std::make_shared<Bytes>(decoder_.state_bytes());
    decoder_.read_state(end, *state,
                        [page = std::move(page), done = std::move(done), state,
                         life = life_.watch()](Status read) mutable {
                            if (!life.alive()) return;
                            if (!read.ok()) return done(read.error());
                            page.state = *state;
                            Bytes bytes = encode_kv_page(page);
                            state->clear();
                            state->shrink_to_fit();
                            done(std::move(bytes));
                        });
}

void LocalPages::encode(KvPage page, std::function<void(Result<Bytes>)> done) {
    const auto num_tokens = static_cast<std::uint32_t>(page.tokens.size());
    Bytes rows(kv_rows_bytes(source_, num_tokens));
    copy_rows(source_, num_tokens, rows_, kv_page_tokens, rows, num_tokens);
    page.rows = rows;
    done(encode_kv_page(page));
}

}  // namespace moex
