// Opens the sources of drafted tokens that `serve` uses: the forms of answers, n-grams, the head of
// the checkpoint that drafts tokens, and the draft model of `--draft DIR`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/commands/load_model.h"
#include "hub/draft/forced_draft.h"
#include "hub/draft/head_draft.h"
#include "hub/draft/model_draft.h"
#include "hub/draft/ngram_draft.h"

namespace moex {

// The sources with all that they use. The model outlives this object.
class DraftParts {
  public:
    // Opens the draft model in `folder`: a package with the same vocabulary, or a shadow of `model`
    // (`moex-hub pack --shadow`), which requires model.decoder. An error names the file that cannot
    // be read, or the difference of the two vocabularies.
    // `on_changed_bytes` is called as by ModelPackage::on_changed_bytes() for a draft model; empty:
    // the process ends.
    Status open(const std::string& folder, const LoadedModel& model,
                const std::function<void(const Error&)>& on_changed_bytes = {});
    // Opens the draft head of the model's package, if it is on this machine. The cores compute it,
    // also where a GPU computes the model: without model.decoder, the model's embeddings and LM
    // head are loaded for it. An error names the file that is damaged.
    Status open_head(const LoadedModel& model,
                     const std::function<void(const Error&)>& on_changed_bytes = {});
    // Makes the sources for an engine with the given options, the cheapest first. Called once. The
    // sources live as long as this object.
    std::vector<DraftSource*> make_sources(const EngineOptions& options);
    // Returns what the sources are, for the log: "grammar, ngram", or "grammar, ngram, mtp, DIR".
    std::string words() const;

  private:
    Status open_shadow(const std::string& folder, const LoadedModel& model);
    Status open_package(const std::string& folder, const LoadedModel& model,
                        const std::function<void(const Error&)>& on_changed_bytes);

    std::string folder_;  // empty: no draft model
    bool is_shadow_ = false;
    std::unique_ptr<ExpertBackend> experts_;
    std::unique_ptr<Decoder> decoder_;
    ForcedDrafts forms_;
    NgramDrafts ngrams_;
    // of the draft head; null if the model has none
    std::unique_ptr<ExpertBackend> head_experts_;
    std::unique_ptr<Decoder> head_;
    std::optional<HeadDrafts> head_drafts_;
    std::optional<ModelDrafts> model_drafts_;
};

}  // namespace moex
