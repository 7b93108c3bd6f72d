#include "web-worker/local/local_pages.h"

#include <algorithm>
#include <cstring>
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
    num_held_ = num_held;
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
    if (page.first_position != first)
        return Error{ErrorCode::bad_field,
                     text("KV page: first_position is ", page.first_position, ", wanted ", first)};
    if (page.before != before)
        return Error{ErrorCode::bad_field,
                     text("KV page: before is ", to_hex(page.before), ", wanted ", to_hex(before))};
    if (!page.workers.empty())
        return Error{ErrorCode::bad_field, "KV page: a page of this device names no workers"};
    if (!page.state.empty() && page.state.size() != decoder_.state_bytes())
        return Error{ErrorCode::bad_field, text("KV page: state has ", page.state.size(),
                                                " bytes, wanted ", decoder_.state_bytes())};
    return {};
}

PageShelf::Taken LocalPages::take(PageShelf::Origin origin, const Sha256& before, ByteView bytes) {
    using Taken = PageShelf::Taken;
    const auto page = decode_kv_page(bytes);
    if (!page.ok() || !check(origin, before, *page).ok()) return Taken::refused;

    const std::uint32_t index = next_page_, first = page->first_position;
    if (first >= prompt_.size()) return Taken::partly;
    const auto wanted = prompt_.subspan(first);
    const auto common = static_cast<std::uint32_t>(
        std::mismatch(wanted.begin(), wanted.end(), page->tokens.begin(), page->tokens.end())
            .first -
        wanted.begin());
    if (first + common <= num_held_) return Taken::partly;
    // A state belongs to all tokens of its page.
    const bool is_whole = common == page->tokens.size(), has_state = !page->state.empty(),
               is_full = common == kv_page_tokens;
    if (has_states() && !(is_whole && (has_state || is_full))) return Taken::partly;

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
    if (has_state || !has_states()) num_held_ = first + common;
    if (origin == PageShelf::Origin::hub) handed_from_ = std::min(handed_from_, first);
    if (!is_full) return Taken::partly;
    ++next_page_;
    return Taken::wholly;
}

void LocalPages::read(std::span<const std::uint32_t> tokens, std::uint32_t index,
                      const Sha256& before, std::function<void(Result<Bytes>)> done) {
    const std::size_t first = std::size_t{index} * kv_page_tokens;
    if (first >= tokens.size())
        return done(Error{ErrorCode::invalid_argument,
                          text("page ", index, " of a text of ", tokens.size(), " tokens")});
    const auto own = tokens.subspan(first,
                                    std::min<std::size_t>(kv_page_tokens, tokens.size() - first));
    KvPage page{.source = source_,
                .before = before,
                .first_position = static_cast<std::uint32_t>(first),
                .tokens = {own.begin(), own.end()}};
    decoder_.read_page(index, rows_,
                       [this, page = std::move(page), done = std::move(done),
                        life = life_.watch()](Status read) mutable {
                           if (!life.alive()) return;
                           if (!read.ok()) return done(read.error());
                           if (!has_states()) return encode(std::move(page), std::move(done));
                           read_state(std::move(page), std::move(done));
                       });
}

void LocalPages::read_state(KvPage page, std::function<void(Result<Bytes>)> done) {
    const auto end = static_cast<std::uint32_t>(page.first_position + page.tokens.size());
    state_.resize(decoder_.state_bytes());
    decoder_.read_state(end, state_,
                        [this, page = std::move(page), done = std::move(done),
                         life = life_.watch()](Status read) mutable {
                            if (!life.alive()) return;
                            const bool is_absent = !read.ok() &&
                                                   read.error().code == ErrorCode::not_found;
                            const bool is_full = page.tokens.size() == kv_page_tokens;
                            if (!read.ok() && !(is_absent && is_full)) return done(read.error());
                            if (read.ok()) page.state = state_;
                            encode(std::move(page), std::move(done));
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
