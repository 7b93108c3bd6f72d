// Fuzzes the reader of GGUF headers with a whole file, and the tokenizer that is made of its
// metadata. If the reader accepts a file, its tensors must be inside the file and apart.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

#include "hub/model/pack/readers/gguf_tokenizer.h"
#include "hub/model/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    static const int fd = ::memfd_create("gguf", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, 0) != 0 ||
        ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
        std::abort();

    std::uint64_t header_bytes_left = 1u << 20;
    const auto file = GgufFile::open(text("/proc/self/fd/", fd), header_bytes_left);
    if (!file.ok()) return 0;
    if (header_bytes_left > 1u << 20) std::abort();
    for (const GgufTensor& tensor : (*file)->tensors()) {
        if (tensor.offset_bytes > size || tensor.size_bytes > size - tensor.offset_bytes)
            std::abort();
        Bytes bytes(tensor.size_bytes);
        if (!(*file)->read_bytes(tensor, 0, bytes).ok()) std::abort();
    }

    ModelSource source;
    add_gguf_tokenizer(**file, source);
    if (const auto made = source.texts.find("tokenizer.json"); made != source.texts.end())
        static_cast<void>(Tokenizer::load(made->second, source.texts["tokenizer_config.json"]));
    return 0;
}
