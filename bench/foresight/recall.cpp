#include "bench/foresight/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "protocol/check.h"

namespace moex::bench {

void Spread::add(double value) {
    ++count_;
    const double before = value - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (value - mean_);
}

double Spread::deviation() const {
    return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
}

std::vector<std::uint16_t> surest_experts(std::span<const float> confidence, std::size_t count) {
    std::vector<std::uint16_t> order(confidence.size());
    std::iota(order.begin(), order.end(), std::uint16_t{0});

    count = std::min(count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                      order.end(), [&](std::uint16_t a, std::uint16_t b) {
                          return confidence[a] != confidence[b] ? confidence[a] > confidence[b]
                                                                : a < b;
                      });
    order.resize(count);
    return order;
}

RecallMeter::RecallMeter(RecallOptions options) : options_(std::move(options)) {
    MOEX_CHECK(!options_.fetches.empty() && options_.fetches.front() == options_.top_k &&
                   std::is_sorted(options_.fetches.begin(), options_.fetches.end()),
               "the first fetch is top_k, and they ascend");

    const std::size_t num_fetches = options_.fetches.size();
    const auto resize = [](std::vector<Spread>& spreads, std::vector<Sum>& now, std::size_t size) {
        spreads.resize(size);
        now.resize(size);
    };
    resize(recall_, recall_now_, num_fetches);
    resize(ranks_, ranks_now_, options_.top_k);
    resize(tokens_, tokens_now_, options_.tokens_max);
    resize(token_ranks_, token_ranks_now_, std::size_t{options_.tokens_max} * options_.top_k);
    resize(token_cosines_, token_cosines_now_, options_.tokens_max);
    resize(layers_, layers_now_, options_.num_layers * num_fetches);
    resize(cosines_, cosines_now_, options_.num_layers);
}

void RecallMeter::record(std::uint32_t layer, std::uint32_t token_index,
                         std::span<const float> confidence, std::span<const std::uint16_t> asked) {
    const auto surest = surest_experts(confidence, options_.fetches.back());
    const bool in_means = layer >= options_.first_layer;

    for (std::size_t fetch = 0; fetch < options_.fetches.size(); ++fetch) {
        const auto end = surest.begin() +
                         std::min<std::ptrdiff_t>(options_.fetches[fetch],
                                                  static_cast<std::ptrdiff_t>(surest.size()));
        double hits = 0;
        for (std::size_t rank = 0; rank < asked.size(); ++rank) {
            const bool hit = std::find(surest.begin(), end, asked[rank]) != end;
            hits += hit;
            if (fetch == 0 && in_means) add_rank(rank, token_index, hit);
        }

        layers_now_[layer * options_.fetches.size() + fetch].add(hits, asked.size());
        if (!in_means) continue;

        recall_now_[fetch].add(hits, asked.size());
        if (fetch == 0 && token_index < options_.tokens_max)
            tokens_now_[token_index].add(hits, asked.size());
    }
}

void RecallMeter::record_none(std::uint32_t layer, std::uint32_t token_index) {
    const bool in_means = layer >= options_.first_layer;
    for (std::size_t fetch = 0; fetch < options_.fetches.size(); ++fetch) {
        layers_now_[layer * options_.fetches.size() + fetch].add(0, options_.top_k);
        if (in_means) recall_now_[fetch].add(0, options_.top_k);
    }

    if (!in_means) return;
    for (std::size_t rank = 0; rank < options_.top_k; ++rank) add_rank(rank, token_index, 0);
    if (token_index < options_.tokens_max) tokens_now_[token_index].add(0, options_.top_k);
}

void RecallMeter::record_cosine(std::uint32_t layer, std::uint32_t token_index, double cosine) {
    cosines_now_[layer].add(cosine, 1);
    if (layer >= options_.first_layer && token_index < options_.tokens_max)
        token_cosines_now_[token_index].add(cosine, 1);
}

void RecallMeter::add_rank(std::size_t rank, std::uint32_t token_index, double hit) {
    ranks_now_[rank].add(hit, 1);
    if (token_index < options_.tokens_max)
        token_ranks_now_[token_index * options_.top_k + rank].add(hit, 1);
}

void RecallMeter::close(std::vector<Sum>& sums, std::vector<Spread>& spreads) {
    for (std::size_t i = 0; i < sums.size(); ++i)
        if (sums[i].of > 0) spreads[i].add(sums[i].hits / static_cast<double>(sums[i].of));
    std::fill(sums.begin(), sums.end(), Sum{});
}

void RecallMeter::end_window() {
    close(recall_now_, recall_);
    close(ranks_now_, ranks_);
    close(tokens_now_, tokens_);
    close(token_ranks_now_, token_ranks_);
    close(token_cosines_now_, token_cosines_);
    close(layers_now_, layers_);
    close(cosines_now_, cosines_);
}

}  // namespace moex::bench
