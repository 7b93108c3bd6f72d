#include "hub/model/pack/readers/gguf_source.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "hub/model/pack/readers/gguf_config.h"
#include "hub/model/pack/readers/gguf_file.h"
#include "hub/model/pack/readers/gguf_tokenizer.h"
#include "hub/model/package/safetensors.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using SharedGguf = std::shared_ptr<GgufFile>;
constexpr std::size_t split_files_max = 1000;

// Rows of one tensor of a GGUF file. llama.cpp stores the rows of queries and keys of a llama model
// in another order, because it rotates neighbours: row h · head_dim + 2j + p of the file is row
// h · head_dim + p · head_dim / 2 + j of transformers.
class GgufReader : public TensorReader {
  public:
    GgufReader(SharedGguf file, const GgufTensor& tensor, std::uint32_t rotated_head_dim,
               TensorInfo info)
        : TensorReader(std::move(info)),
          file_(std::move(file)),
          tensor_(tensor),
          head_dim_(rotated_head_dim) {}

    Status read_int4(std::uint64_t first_row, const Int4Rows& out, Bytes& scratch) const override {
        MOEX_TRY(read_raw(first_row, out.num_rows, scratch));
        gguf_q4_0_to_int4(scratch.data(), out.num_rows * info().row_size() / 32, out.codes,
                          out.scale_zero);
        return {};
    }
    Status read_mxfp4(std::uint64_t first_row, const Mxfp4Rows& out,
                      Bytes& scratch) const override {
        MOEX_TRY(read_raw(first_row, out.num_rows, scratch));
        gguf_mxfp4_to_rows(scratch.data(), out.num_rows * info().row_size() / 32, out.codes,
                           out.scales);
        return {};
    }

  private:
    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        const bool is_rotated_vector = head_dim_ > 0 && info().shape.size() == 1;
        MOEX_TRY(read_raw(first_row, out.size() / info().row_size(), scratch));
        decode_gguf_blocks(*tensor_.type, scratch.data(), out);
        if (!is_rotated_vector) return {};

        const std::vector<float> stored(out.begin(), out.end());
        for (std::uint64_t i = 0; i < stored.size(); ++i) out[i] = stored[stored_row(i)];
        return {};
    }

    std::uint64_t stored_row(std::uint64_t row) const {
        const std::uint64_t in_head = row % head_dim_, half = head_dim_ / 2;
        return row - in_head + in_head % half * 2 + in_head / half;
    }

    Status read_raw(std::uint64_t first_row, std::uint64_t num_rows, Bytes& scratch) const {
        const std::uint64_t row_bytes = info().row_size() / tensor_.type->block_elements *
                                        tensor_.type->block_bytes;
        scratch.resize(num_rows * row_bytes);
        if (head_dim_ == 0 || info().shape.size() == 1)
            return file_->read_bytes(tensor_, first_row * row_bytes, scratch);
        for (std::uint64_t row = 0; row < num_rows; ++row)
            MOEX_TRY(file_->read_bytes(tensor_, stored_row(first_row + row) * row_bytes,
                                       std::span(scratch).subspan(row * row_bytes, row_bytes)));
        return {};
    }

    SharedGguf file_;
    const GgufTensor& tensor_;
    std::uint32_t head_dim_;
};

// Returns the name of a split file with this number (from 1), e.g. "m-00002-of-00003.gguf" for the
// first file's "m-00001-of-00003.gguf"; empty if the first file's name has another form.
std::string split_name(const std::string& first, std::uint64_t number, std::uint64_t count) {
    char begin[40], wanted[40];
    std::snprintf(begin, sizeof begin, "-00001-of-%05llu.gguf",
                  static_cast<unsigned long long>(count));
    std::snprintf(wanted, sizeof wanted, "-%05llu-of-%05llu.gguf",
                  static_cast<unsigned long long>(number), static_cast<unsigned long long>(count));
    if (!first.ends_with(begin)) return "";
    return first.substr(0, first.size() - std::string_view(begin).size()) + wanted;
}

std::uint64_t number_of(const GgufFile& file, std::string_view name) {
    const auto found = file.metadata().find(name);
    if (found == file.metadata().end() || !found->second.is_number_integer()) return 0;
    const auto value = found->second.get<std::int64_t>();
    return value < 0 ? 0 : static_cast<std::uint64_t>(value);
}

// Opens all files of a model that begins with `path`.
Result<std::vector<SharedGguf>> open_files(const fs::path& path) {
    std::uint64_t header_bytes_left = safetensors_header_bytes_max;
    std::vector<SharedGguf> files;
    MOEX_ASSIGN(first, GgufFile::open(path, header_bytes_left));
    files.push_back(first);
    const std::uint64_t count = number_of(*first, "split.count");
    if (count <= 1) return files;

    if (count > split_files_max)
        return Error{ErrorCode::bad_file, text(path.string(), ": split.count is ", count,
                                               ", wanted at most ", split_files_max)};
    if (number_of(*first, "split.no") != 0 ||
        split_name(path.filename().string(), 1, count).empty())
        return Error{ErrorCode::invalid_argument,
                     text(path.string(), ": one of ", count,
                          " files of a split model; name the first one, which ends with "
                          "-00001-of-000NN.gguf")};
    std::uint64_t tensors = first->tensors().size();
    for (std::uint64_t number = 2; number <= count; ++number) {
        const fs::path next = path.parent_path() /
                              split_name(path.filename().string(), number, count);
        MOEX_ASSIGN(file, GgufFile::open(next, header_bytes_left));
        if (number_of(*file, "split.no") != number - 1 || number_of(*file, "split.count") != count)
            return Error{ErrorCode::bad_file,
                         text(next.string(), ": split.no is ", number_of(*file, "split.no"),
                              ", wanted ", number - 1, "; from another model?")};
        tensors += file->tensors().size();
        files.push_back(std::move(file));
    }
    if (const std::uint64_t wanted = number_of(*first, "split.tensors.count");
        wanted != 0 && wanted != tensors)
        return Error{ErrorCode::bad_file, text(path.string(), ": split.tensors.count is ", wanted,
                                               ", but the files have ", tensors, " tensors")};
    return files;
}

Status add_readers(ModelSource& source, const std::vector<SharedGguf>& files,
                   const GgufModel& model) {
    for (const SharedGguf& file : files) {
        const auto file_name = std::make_shared<const std::string>(file->path().string());
        for (const GgufTensor& tensor : file->tensors()) {
            TensorInfo info{.name = transformers_name(tensor.name),
                            .shape = tensor.shape,
                            .file = file_name,
                            .format = tensor.type->name,
                            .is_readable = tensor.type->block_elements > 0,
                            .stored_bytes = tensor.size_bytes};
            if (info.format == "F32") info.plain = TensorDtype::f32;
            if (info.format == "F16") info.plain = TensorDtype::f16;
            if (info.format == "BF16") info.plain = TensorDtype::bf16;
            if (info.format == "Q4_0") info.int4_group = 32;
            info.is_mxfp4 = info.format == "MXFP4";
            if (!info.is_readable)
                return Error{ErrorCode::unsupported,
                             text(file->path().string(), ": tensor ", json_excerpt(tensor.name),
                                  " is ", info.format, "; readable: ", readable_gguf_types())};

            source.tensor_bytes += tensor.size_bytes;
            const std::string name = info.name;
            const bool is_rotated = model.rotates_neighbours &&
                                    (name.find(".self_attn.q_proj.") != std::string::npos ||
                                     name.find(".self_attn.k_proj.") != std::string::npos);
            if (is_rotated && (tensor.shape.empty() || tensor.shape[0] % model.head_dim != 0))
                return Error{ErrorCode::bad_file,
                             text(file->path().string(), ": tensor ", json_excerpt(tensor.name),
                                  " is ", shape_text(tensor.shape),
                                  ", wanted rows of whole heads (", model.head_dim, ")")};
            auto reader = std::make_unique<GgufReader>(
                file, tensor, is_rotated ? model.head_dim : 0, std::move(info));
            if (!source.readers.emplace(name, std::move(reader)).second)
                return Error{ErrorCode::bad_file,
                             text(file->path().string(), ": tensor ", json_excerpt(tensor.name),
                                  " is in another file of the model, too")};
        }
        source.fingerprint += file->fingerprint();
    }
    return {};
}

}  // namespace

std::vector<fs::path> gguf_models_in(const fs::path& directory) {
    std::vector<fs::path> found;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(".gguf")) continue;
        // A file "NAME-00002-of-00003.gguf" continues the model of NAME-00001-of-00003.gguf.
        const std::size_t of = name.rfind("-of-");
        const bool continues = of != std::string::npos && of >= 6 && name[of - 6] == '-' &&
                               name.substr(of - 5, 5) != "00001" &&
                               name.find_first_not_of("0123456789", of - 5) == of;
        if (!continues) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
}

Result<ModelSource> open_gguf_source(const fs::path& path) {
    MOEX_ASSIGN(files, open_files(path));
    ModelSource source;
    source.path = path;
    source.config_what = path.string();
    const GgufFile& first = *files.front();
    std::vector<const GgufTensor*> tensors;
    for (const SharedGguf& file : files)
        for (const GgufTensor& tensor : file->tensors()) tensors.push_back(&tensor);

    MOEX_ASSIGN(model, gguf_model_of(first, tensors));
    source.config_json = model.config.dump();
    MOEX_TRY(add_readers(source, files, model));
    source.ignored.insert("rope_freqs.weight");  // part of the configuration
    add_gguf_tokenizer(first, source);
    for (const SharedGguf& file : files) file->drop_metadata();
    source.files = std::make_shared<const std::vector<SharedGguf>>(std::move(files));
    return source;
}

}  // namespace moex
