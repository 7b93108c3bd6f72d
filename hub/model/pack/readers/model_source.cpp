#include "hub/model/pack/readers/model_source.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {

const TensorReader* ModelSource::find(std::string_view name) const {
    const auto found = readers.find(name);
    return found == readers.end() ? nullptr : found->second.get();
}

Result<const TensorReader*> ModelSource::require(std::string_view name,
                                                 std::span<const std::uint64_t> shape,
                                                 std::string_view shape_words) const {
    const TensorReader* const reader = find(name);
    if (reader == nullptr)
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": tensor ", name, " is missing, wanted ",
                          shape_text(shape), " (", shape_words, ")")};

    const TensorInfo& info = reader->info();
    if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end()))
        return Error{ErrorCode::bad_file,
                     text(info.where(), " is ", shape_text(info.shape), ", config.json wants ",
                          shape_text(shape), " (", shape_words, "); from another model?")};
    if (!info.is_readable)
        return Error{ErrorCode::unsupported,
                     text(info.where(), " is ", info.format, ", wanted BF16, F16 or F32")};
    return reader;
}

}  // namespace moex
