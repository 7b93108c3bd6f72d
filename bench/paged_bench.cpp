// Measures a long text of which only a part of the keys and values fits into the GPU's memory. The
// other pages are in a file (web-worker/decoder/paged_steps.h). The same text is computed with all
// pages in memory first, and the logits behind each chunk of the prompt and each token are
// compared.
//   paged_bench [--shape NAME] [--weights int4|bf16|f32|mixed] [--tokens N] [--answer N]
//               [--share N] [--kv f32|f16|u8] [--folder DIR]
// --share: one page in N fits. The weights are random.
// CSV: adapter, shape, kv, tokens, pages, slots, kv_mb (on the GPU), prompt_tok_s, ms_token,
// read_mb_token (from the file), same (1: all logits have the same bits)
// example: paged_bench --shape bench-moe --tokens 6000 --share 3
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/posted_loop.h"
#include "web-worker/decoder/bench_models.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "paged_bench: %s\n", what.c_str());
    std::exit(1);
}
template <class Value>
Value must(Result<Value> result) {
    if (!result.ok()) fail(result.error().message);
    return std::move(result).value();
}

struct Options {
    std::string shape = "bench-moe", weights = "mixed", kv = "f16", folder = "/tmp";
    std::uint32_t tokens = 6000, answer = 16, share = 3;

    KvKind kind() const {
        return kv == "f32" ? KvKind::f32 : kv == "u8" ? KvKind::u8 : KvKind::f16;
    }
};

Options options_of(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        const auto number = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        if (flag == "--shape")
            options.shape = value;
        else if (flag == "--weights")
            options.weights = value;
        else if (flag == "--kv")
            options.kv = value;
        else if (flag == "--folder")
            options.folder = value;
        else if (flag == "--tokens")
            options.tokens = number;
        else if (flag == "--answer")
            options.answer = number;
        else if (flag == "--share")
            options.share = number;
        else
            fail("unknown flag " + flag);
    }
    if (argc % 2 == 0 || options.tokens == 0 || options.share == 0) fail("see the file's head");
    return options;
}

// Pages in one file, which is gone when the program ends.
class FileStore : public EvictedPages {
  public:
    FileStore(const std::string& folder, std::uint64_t layer_bytes, std::uint32_t num_layers)
        : layer_bytes_(layer_bytes),
          page_bytes_(layer_bytes * num_layers) {
        const std::filesystem::path path = std::filesystem::path(folder) / "moex-paged-bench";
        file_ = std::fopen(path.c_str(), "w+b");
        if (file_ == nullptr) fail("cannot write " + path.string());
        std::filesystem::remove(path);
    }
    ~FileStore() override { std::fclose(file_); }
    FileStore(const FileStore&) = delete;

    void write(std::uint32_t page, ByteView layers, std::function<void(Status)> done) override {
        seek(page_bytes_ * page);
        const bool is_written = std::fwrite(layers.data(), 1, layers.size(), file_) ==
                                    layers.size() &&
                                std::fflush(file_) == 0;
        done(is_written ? Status() : Status(Error{ErrorCode::no_space, "the file is full"}));
    }
    void read(std::uint32_t layer, std::span<const std::uint32_t> pages,
              std::function<void(Result<ByteView>)> done) override {
        bytes_.resize(layer_bytes_ * pages.size());
        for (std::size_t i = 0; i < pages.size(); ++i) {
            seek(page_bytes_ * pages[i] + layer_bytes_ * layer);
            if (std::fread(bytes_.data() + layer_bytes_ * i, 1, layer_bytes_, file_) !=
                layer_bytes_)
                return done(Error{ErrorCode::internal, "the file ended early"});
        }
        num_read += bytes_.size();
        done(ByteView(bytes_));
    }
    std::uint64_t num_read = 0;  // bytes

  private:
    void seek(std::uint64_t at) { std::fseek(file_, static_cast<long>(at), SEEK_SET); }
    const std::uint64_t layer_bytes_, page_bytes_;
    std::FILE* file_ = nullptr;
    Bytes bytes_;
};

// The figures of one text, and the logits of its prompt's end and of its answer.
struct Run {
    std::uint32_t pages = 0, slots = 0;
    double kv_mb = 0, prompt_tok_s = 0, ms_token = 0, read_mb_token = 0;
    std::vector<std::vector<float>> logits;
};

// Computes the text; `slots`: pages that fit, 0: all.
Run run(const Options& options, const DecoderModel& model, std::uint32_t slots,
        std::string& adapter) {
    test::PostedLoop loop;
    const auto device = must(gpu::open_vulkan_device({}, loop.poster()));
    adapter = device->adapter().description;
    FileStore store(options.folder, DecoderMemory::kv_page_bytes(model, options.kind()),
                    model.num_layers);
    PatternWeights weights(model);
    std::unique_ptr<GpuDecoder> decoder;
    bool finished = false;
    GpuDecoder::create(*device, model,
                       {.context_tokens = options.tokens + options.answer,
                        .slots = slots,
                        .evicted = &store,
                        .kv_kind = options.kind()},
                       weights, [&](Result<std::unique_ptr<GpuDecoder>> made) {
                           finished = true;
                           decoder = must(std::move(made));
                       });
    if (!finished) loop.run_until(finished);

    Run out;
    const auto read = [&] {
        bool is_read = false;
        decoder->read_logits([&](Result<std::span<const float>> logits) {
            is_read = true;
            const auto values = must(std::move(logits));
            out.logits.emplace_back(values.begin(), values.end());
        });
        if (!is_read) loop.run_until(is_read);
    };
    std::vector<std::uint32_t> prompt(options.tokens);
    for (std::uint32_t i = 0; i < options.tokens; ++i)
        prompt[i] = (i * 2654435761u >> 8) % model.vocab_size;
    const auto begun = Clock::now();
    // Each chunk is waited for: a driver gives up on work that waits too long.
    for (std::span<const std::uint32_t> left(prompt); !left.empty();) {
        const auto chunk = left.first(std::min<std::size_t>(left.size(), decoder->rows_max()));
        left = left.subspan(chunk.size());
        if (const Status fed = decoder->feed(chunk, StepLogits::last); !fed.ok())
            fail(fed.error().message);
        read();
    }
    const auto answering = Clock::now();
    const std::uint64_t read_before = store.num_read;
    for (std::uint32_t i = 0; i < options.answer; ++i) {
        const std::uint32_t token = (i * 40503u + 7) % model.vocab_size;
        if (const Status fed = decoder->feed(std::span(&token, 1), StepLogits::last); !fed.ok())
            fail(fed.error().message);
        read();
    }
    using Seconds = std::chrono::duration<double>;
    const double num = std::max(1u, options.answer);
    out.pages = decoder->context_tokens() / kv_page_tokens;
    out.slots = decoder->num_pages();
    out.kv_mb = static_cast<double>(decoder->kv_bytes()) / 1e6;
    out.prompt_tok_s = options.tokens / Seconds(answering - begun).count();
    out.ms_token = 1000 * Seconds(Clock::now() - answering).count() / num;
    out.read_mb_token = static_cast<double>(store.num_read - read_before) / 1e6 / num;
    return out;
}

int main_of(int argc, char** argv) {
    const Options options = options_of(argc, argv);
    const DecoderModel model = must(
        bench_model(options.shape, options.weights, options.tokens + options.answer));
    std::string adapter;
    std::printf(
        "adapter,shape,kv,tokens,pages,slots,kv_mb,prompt_tok_s,ms_token,read_mb_token,same\n");
    const Run whole = run(options, model, 0, adapter);
    const Run paged = run(options, model, whole.pages / options.share, adapter);
    const bool same = std::equal(whole.logits.begin(), whole.logits.end(), paged.logits.begin(),
                                 paged.logits.end(), [](const auto& a, const auto& b) {
                                     return a.size() == b.size() &&
                                            std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
                                 });
    for (const Run& one : {whole, paged})
        std::printf("\"%s\",%s,%s,%u,%u,%u,%.1f,%.1f,%.2f,%.1f,%d\n", adapter.c_str(),
                    options.shape.c_str(), options.kv.c_str(), options.tokens, one.pages, one.slots,
                    one.kv_mb, one.prompt_tok_s, one.ms_token, one.read_mb_token, same ? 1 : 0);
    return same ? 0 : 1;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) { return moex::main_of(argc, argv); }
