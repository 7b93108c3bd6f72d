// How a model's rows become the embedding of a text. Source: modules.json and the pooling module of
// sentence-transformers.
#pragma once

namespace moex {

// The rows after the final norm that an embedding is made of: the mean of all, the last, the first.
enum class Pooling { mean, last, first };

struct EmbeddingForm {
    Pooling pooling = Pooling::mean;
    bool normalize = true;  // the embedding is scaled to length 1
    bool operator==(const EmbeddingForm&) const = default;
};

}  // namespace moex
