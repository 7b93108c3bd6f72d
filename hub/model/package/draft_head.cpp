#include "hub/model/package/draft_head.h"

namespace moex {

Result<std::shared_ptr<const ModelPackage>> open_draft_head(const ModelPackage& model) {
    const auto wanted = model.draft_head_hash();
    const std::filesystem::path folder = draft_head_folder(model.directory());
    std::error_code ignored;
    if (!wanted)
        return Error{ErrorCode::not_found,
                     text(model.directory().string(), ": the package has no draft head")};
    if (!std::filesystem::exists(folder / "manifest.json", ignored))
        return Error{ErrorCode::not_found,
                     text(folder.string(), ": the draft head of this package is not here")};

    MOEX_ASSIGN(head, ModelPackage::open(folder));
    if (head->manifest_sha256() != to_hex(*wanted))
        return Error{
            ErrorCode::hash_mismatch,
            text((folder / "manifest.json").string(), ": SHA-256 is ", head->manifest_sha256(),
                 ", the model's manifest.json wants ", to_hex(*wanted), "; from another package?")};
    const ModelConfig &of_head = head->config(), &of_model = model.config();
    const bool fits = of_head.is_draft_head && of_head.num_layers == 1 && of_head.has_keys(0) &&
                      of_head.hidden_size == of_model.hidden_size &&
                      of_head.vocab_size == of_model.vocab_size;
    if (!fits)
        return Error{ErrorCode::bad_file,
                     text(folder.string(), ": is no draft head of one layer with hidden_size ",
                          of_model.hidden_size, " and vocab_size ", of_model.vocab_size)};
    return head;
}

}  // namespace moex
