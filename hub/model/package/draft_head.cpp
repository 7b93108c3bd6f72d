#include "hub/model/package/draft_head.h"

namespace moex {

Result<std::shared_ptr<const ModelPackage>> open_draft_head(const ModelPackage& model) {
    MOEX_ASSIGN(head, model.draft_head());
    const ModelConfig &of_head = head->config(), &of_model = model.config();
    const bool fits = of_head.is_draft_head && of_head.num_layers == 1 && of_head.has_keys(0) &&
                      of_head.hidden_size == of_model.hidden_size &&
                      of_head.vocab_size == of_model.vocab_size;
    if (!fits)
        return Error{
            ErrorCode::bad_file,
            text(head->directory().string(), ": is no draft head of one layer with hidden_size ",
                 of_model.hidden_size, " and vocab_size ", of_model.vocab_size)};
    return head;
}

}  // namespace moex
