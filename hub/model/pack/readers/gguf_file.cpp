#include "hub/model/pack/readers/gguf_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/package/tensor.h"
#include "hub/model/strict_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t metadata_max = 1u << 16, tensors_max = 1u << 20, name_bytes_max = 1u << 10,
                        rank_max_of_gguf = 4, alignment_max = 1u << 20;

// Reads a file from its start, piece by piece. The first problem is kept, and later reads give
// zeros.
class GgufCursor {
  public:
    GgufCursor(int fd, std::uint64_t file_bytes, std::uint64_t header_bytes_max)
        : fd_(fd),
          file_bytes_(file_bytes),
          end_(std::min(file_bytes, header_bytes_max)) {}

    template <class Number>
    Number number() {
        Number value{};
        read(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }
    std::string string(std::uint64_t bytes_max) {
        const auto size = number<std::uint64_t>();
        if (problem_) return "";
        if (size > bytes_max || size > end_ - offset_) {
            fail(text("a string of ", size, " bytes at byte ", offset_ - 8, "; truncated?"));
            return "";
        }
        std::string out(size, '\0');
        read(std::as_writable_bytes(std::span(out)));
        return out;
    }
    std::uint64_t offset_bytes() const { return offset_; }
    std::uint64_t bytes_left() const { return end_ - offset_; }
    void fail(const std::string& message) {
        if (!problem_) problem_ = message;
    }
    const std::optional<std::string>& problem() const { return problem_; }

  private:
    static constexpr std::size_t buffer_bytes = 1u << 18;

    void read(std::span<std::byte> out) {
        if (problem_) return;
        if (out.size() > end_ - offset_)
            return fail(end_ < file_bytes_
                            ? text("its header is longer than ", end_, " bytes")
                            : text("the header ends at byte ", file_bytes_, "; truncated?"));
        while (!out.empty()) {
            if (offset_ < buffer_at_ || offset_ >= buffer_at_ + buffer_.size()) {
                buffer_.resize(std::min<std::uint64_t>(buffer_bytes, end_ - offset_));
                buffer_at_ = offset_;
                if (const Status status = pread_all(fd_, offset_, buffer_); !status.ok())
                    return fail(status.error().message);
            }
            const std::size_t at = offset_ - buffer_at_,
                              count = std::min(out.size(), buffer_.size() - at);
            std::memcpy(out.data(), buffer_.data() + at, count);
            out = out.subspan(count);
            offset_ += count;
        }
    }

    int fd_;
    std::uint64_t file_bytes_, end_, offset_ = 0, buffer_at_ = 0;
    Bytes buffer_;
    std::optional<std::string> problem_;
};

constexpr std::uint32_t value_string = 8, value_array = 9;

nlohmann::json read_value(GgufCursor& in, std::uint32_t type) {
    switch (type) {
        case 0: return in.number<std::uint8_t>();
        case 1: return in.number<std::int8_t>();
        case 2: return in.number<std::uint16_t>();
        case 3: return in.number<std::int16_t>();
        case 4: return in.number<std::uint32_t>();
        case 5: return in.number<std::int32_t>();
        case 6: return in.number<float>();
        case 7: return in.number<std::uint8_t>() != 0;
        case value_string: return in.string(std::uint64_t{1} << 26);
        case 10: return in.number<std::uint64_t>();
        case 11: return in.number<std::int64_t>();
        case 12: return in.number<double>();
        default: in.fail(text("a value of type ", type, ", which GGUF 3 does not have"));
    }
    return nullptr;
}

nlohmann::json read_array(GgufCursor& in) {
    const auto type = in.number<std::uint32_t>();
    const auto count = in.number<std::uint64_t>();
    if (type == value_array) in.fail("an array of arrays");
    const std::uint64_t bytes_min = type == value_string ? 8 : 1;
    if (count > in.bytes_left() / bytes_min)
        in.fail(text("an array of ", count, " values at byte ", in.offset_bytes(),
                     ", more than the file holds; truncated?"));
    nlohmann::json::array_t array;
    if (!in.problem()) array.reserve(count);
    for (std::uint64_t i = 0; i < count && !in.problem(); ++i)
        array.push_back(read_value(in, type));
    return array;
}

}  // namespace

// Fills in a GgufFile.
class GgufParser {
  public:
    GgufParser(GgufFile& file, std::uint64_t file_bytes, std::uint64_t header_bytes_max)
        : file_(file),
          file_bytes_(file_bytes),
          in_(file.fd_, file_bytes, header_bytes_max) {}

    Status parse() {
        MOEX_TRY(parse_start());
        MOEX_TRY(parse_metadata());
        for (std::uint64_t i = 0; i < num_tensors_; ++i) MOEX_TRY(parse_tensor());
        return place_tensors();
    }
    std::uint64_t header_bytes() const { return in_.offset_bytes(); }

  private:
    Error bad(const std::string& message) const {
        return {ErrorCode::bad_file, text(file_.path_.string(), ": ", message)};
    }
    Status check() const {
        if (in_.problem()) return bad(*in_.problem());
        return {};
    }

    Status parse_start() {
        const auto magic = in_.number<std::uint32_t>();
        const auto version = in_.number<std::uint32_t>();
        num_tensors_ = in_.number<std::uint64_t>();
        num_values_ = in_.number<std::uint64_t>();
        if (!in_.problem() && magic != 0x46554747) return bad("not a GGUF file");
        MOEX_TRY(check());
        if (version != 3)
            return Error{ErrorCode::unsupported,
                         text(file_.path_.string(), ": GGUF of version ",
                              version == 0x03000000 ? "3 in big-endian order" : text(version),
                              ", wanted version 3, little-endian; convert the model again")};
        if (num_tensors_ > tensors_max || num_values_ > metadata_max)
            return bad(text(num_tensors_, " tensors and ", num_values_, " values, wanted at most ",
                            tensors_max, " and ", metadata_max));
        return {};
    }

    Status parse_metadata() {
        for (std::uint64_t i = 0; i < num_values_; ++i) {
            std::string name = in_.string(name_bytes_max);
            const auto type = in_.number<std::uint32_t>();
            auto value = type == value_array ? read_array(in_) : read_value(in_, type);
            if (in_.problem())
                return bad(text("metadata ", json_excerpt(name), ": ", *in_.problem()));
            if (!file_.metadata_.emplace(name, std::move(value)).second)
                return bad(text("metadata ", json_excerpt(name), " is there twice"));
        }
        return {};
    }

    Status parse_tensor() {
        GgufTensor tensor{.name = in_.string(name_bytes_max)};
        const auto rank = in_.number<std::uint32_t>();
        if (rank > rank_max_of_gguf) in_.fail(text(rank, " dimensions, wanted at most 4"));
        std::uint64_t elements = 1;
        for (std::uint32_t axis = 0; axis < rank && !in_.problem(); ++axis) {
            tensor.shape.insert(tensor.shape.begin(), in_.number<std::uint64_t>());
            if (__builtin_mul_overflow(elements, tensor.shape.front(), &elements) ||
                elements > std::uint64_t{1} << 48)
                in_.fail(text("shape ", shape_text(tensor.shape), " is larger than any file"));
        }
        const auto type = in_.number<std::uint32_t>();
        tensor.offset_bytes = in_.number<std::uint64_t>();
        const std::string shown = json_excerpt(tensor.name);
        if (in_.problem()) return bad(text("tensor ", shown, ": ", *in_.problem()));

        tensor.type = find_gguf_type(type);
        if (tensor.type == nullptr)
            return Error{ErrorCode::unsupported,
                         text(file_.path_.string(), ": tensor ", shown, " has the type ", type,
                              ", which is not known; readable: ", readable_gguf_types())};
        const std::uint32_t block = tensor.type->block_elements;
        const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
        if (block > 0 && row % block != 0)
            return bad(text("tensor ", shown, " is ", tensor.type->name, " ",
                            shape_text(tensor.shape), ", wanted rows of whole blocks of ", block));
        if (block > 0) tensor.size_bytes = elements / block * tensor.type->block_bytes;
        file_.tensors_.push_back(std::move(tensor));
        return {};
    }

    // Converts offsets to positions in the file, and checks that the tensors are inside it and do
    // not overlap.
    Status place_tensors() {
        std::uint64_t alignment = 32;
        if (const auto found = file_.metadata_.find("general.alignment");
            found != file_.metadata_.end()) {
            const auto& value = found->second;
            alignment = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
            if (alignment == 0 || alignment > alignment_max || (alignment & (alignment - 1)) != 0)
                return bad(text("metadata \"general.alignment\" is ", json_excerpt(value),
                                ", wanted a power of two"));
        }
        const std::uint64_t start = (in_.offset_bytes() + alignment - 1) / alignment * alignment;

        std::set<std::string_view> names;
        std::vector<const GgufTensor*> order;
        for (GgufTensor& tensor : file_.tensors_) {
            if (!names.insert(tensor.name).second)
                return bad(text("tensor ", json_excerpt(tensor.name), " is there twice"));
            if (tensor.offset_bytes % alignment != 0)
                return bad(text("tensor ", json_excerpt(tensor.name), " begins at byte ",
                                tensor.offset_bytes, ", wanted a multiple of ", alignment));
            if (tensor.offset_bytes > file_bytes_ || start > file_bytes_ - tensor.offset_bytes ||
                tensor.size_bytes > file_bytes_ - tensor.offset_bytes - start)
                return bad(text("tensor ", json_excerpt(tensor.name), " has ", tensor.size_bytes,
                                " bytes from byte ", tensor.offset_bytes, " of ",
                                file_bytes_ - std::min(start, file_bytes_), "; truncated?"));
            tensor.offset_bytes += start;
            order.push_back(&tensor);
        }

        std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
            return std::tie(a->offset_bytes, a->name) < std::tie(b->offset_bytes, b->name);
        });
        for (std::size_t i = 1; i < order.size(); ++i)
            if (order[i]->offset_bytes < order[i - 1]->offset_bytes + order[i - 1]->size_bytes)
                return bad(text("tensors ", json_excerpt(order[i - 1]->name), " and ",
                                json_excerpt(order[i]->name), " overlap"));
        return {};
    }

    GgufFile& file_;
    std::uint64_t file_bytes_, num_tensors_ = 0, num_values_ = 0;
    GgufCursor in_;
};

GgufFile::~GgufFile() {
    if (fd_ >= 0) ::close(fd_);
}

Result<std::shared_ptr<GgufFile>> GgufFile::open(const std::filesystem::path& path,
                                                 std::uint64_t& header_bytes_left) {
    std::shared_ptr<GgufFile> file(new GgufFile);
    file->path_ = path;
    file->fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file->fd_ < 0) {
        const ErrorCode code = errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error;
        return Error{code, text(path.string(), ": ", std::strerror(errno))};
    }
    struct stat info {};
    if (::fstat(file->fd_, &info) != 0 || !S_ISREG(info.st_mode))
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};

    GgufParser parser(*file, static_cast<std::uint64_t>(info.st_size), header_bytes_left);
    MOEX_TRY(parser.parse());
    header_bytes_left -= parser.header_bytes();

    Bytes header(parser.header_bytes());
    MOEX_TRY(pread_all(file->fd_, 0, header));
    file->fingerprint_ = text(
        path.filename().string(), ' ', info.st_size, ' ',
        std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, ' ',
        to_hex(sha256(header)), '\n');
    return std::shared_ptr<GgufFile>(std::move(file));
}

Status GgufFile::read_bytes(const GgufTensor& tensor, std::uint64_t first_byte,
                            std::span<std::byte> out) const {
    MOEX_CHECK(first_byte + out.size() <= tensor.size_bytes,
               text("read past the end of ", tensor.name));
    const Status status = pread_all(fd_, tensor.offset_bytes + first_byte, out);
    if (!status.ok())
        return Error{status.error().code,
                     text(path_.string(), ": tensor ", json_excerpt(tensor.name), ": ",
                          status.error().message)};
    return {};
}

}  // namespace moex
