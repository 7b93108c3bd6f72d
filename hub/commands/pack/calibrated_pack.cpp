#include "hub/commands/pack/calibrated_pack.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/base/system_memory.h"
#include "hub/commands/calibrate.h"
#include "hub/commands/pack/calibrating_experts.h"
#include "hub/engine/divergence.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/input_reader.h"
#include "hub/model/pack/pack_input.h"
#include "hub/model/pack/whole_file.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/package.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t window_tokens_max = 512;
// windows at the end of the text on which the package is compared with the checkpoint; an eighth of
// a short text
constexpr std::size_t tail_windows_max = 16;

// The parts of a calibration text, in whole windows.
struct CalibrationWindows {
    std::uint32_t window_tokens = 0;
    std::vector<TokenId> learn, tail;
};

// Returns for example ", 2:05 left" when `share` of the work is done; nothing before its start.
std::string time_left_text(TimePoint started_at, double share) {
    if (!(share > 0)) return {};
    const double seconds = to_ms(now_steady() - started_at) / 1e3 * (1 - share) / share;
    char shown[32];
    std::snprintf(shown, sizeof shown, ", %d:%02d left", static_cast<int>(seconds) / 60,
                  static_cast<int>(seconds) % 60);
    return shown;
}

// Returns about how many bytes a row of the calibration step takes: keys and values of all layers,
// and the decoder's buffers of a layer.
std::uint64_t row_bytes_of(const ModelConfig& config) {
    const std::uint64_t kv = 2ull * config.num_layers * config.num_kv_heads * config.head_dim,
                        layer = 8ull * config.hidden_size +
                                3ull * config.num_heads * config.head_dim +
                                4ull * config.num_experts;
    return (kv + layer) * sizeof(float);
}

Result<CalibrationWindows> windows_of(const ModelConfig& config, const Tokenizer& tokenizer,
                                      const CalibratedPackOptions& options) {
    MOEX_ASSIGN(tokens, tokens_of_file(options.text_path, tokenizer));
    CalibrationWindows windows;
    windows.window_tokens = std::min<std::uint32_t>(window_tokens_max, config.context_tokens);
    const std::size_t size = windows.window_tokens, num_windows = tokens.size() / size;
    if (num_windows < 2)
        return Error{ErrorCode::invalid_argument,
                     text(options.text_path, ": has ", tokens.size(),
                          " tokens, a calibration needs ", 2 * size, " or more")};

    const std::size_t num_tail = std::clamp<std::size_t>(num_windows / 8, 1, tail_windows_max);
    const std::uint64_t fitting = memory_available() / 2 / row_bytes_of(config) / size;
    std::size_t num_learn = std::min<std::uint64_t>(
        num_windows - num_tail, std::max<std::uint64_t>(options.tokens_max / size, 1));
    if (num_learn > fitting) {
        if (fitting == 0) return Error{ErrorCode::overloaded, "no memory for a calibration window"};
        std::fprintf(stderr, "warning: calibrating with %llu tokens, for which there is memory\n",
                     static_cast<unsigned long long>(fitting * size));
        num_learn = fitting;
    }
    const auto add_window = [&](std::vector<TokenId>& part, std::size_t index) {
        const auto window = std::span(tokens).subspan(index * size, size);
        part.insert(part.end(), window.begin(), window.end());
    };
    // The windows are spread evenly over the text before its tail: its first pages alone would be
    // of one author or subject.
    const std::size_t num_before = num_windows - num_tail;
    for (std::size_t i = 0; i < num_learn; ++i)
        add_window(windows.learn, i * num_before / num_learn);
    for (std::size_t i = num_before; i < num_windows; ++i) add_window(windows.tail, i);
    return windows;
}

// Lets the decoder read all windows in one step.
Status read_in_one_step(Decoder& decoder, ExpertBackend& experts, const CalibrationWindows& windows,
                        std::optional<TokenId> begin_token) {
    constexpr std::uint32_t page_tokens = 16;
    const std::size_t size = windows.window_tokens, num_windows = windows.learn.size() / size;
    const std::size_t pages = (size + page_tokens - 1) / page_tokens * num_windows;
    KvCache cache(decoder.config(), {page_tokens, static_cast<std::uint32_t>(pages), KvDtype::f32});

    std::vector<KvCache::Sequence> sequences;
    std::vector<std::vector<TokenId>> rows;
    for (std::size_t i = 0; i < num_windows; ++i) {
        sequences.emplace_back(cache);
        const auto ids = std::span(windows.learn).subspan(i * size, size);
        rows.emplace_back();
        if (begin_token) rows.back().push_back(*begin_token);
        rows.back().insert(rows.back().end(), ids.begin(), ids.end() - (begin_token ? 1 : 0));
    }
    std::vector<StepRows> batch;
    for (std::size_t i = 0; i < sequences.size(); ++i)
        batch.push_back({.kv = &sequences[i], .tokens = rows[i], .no_logits = true});
    MOEX_TRY(decoder.step(batch, experts));
    return {};
}

// Stores the blobs of quantised experts in the package's folder, and then names them in its
// manifest.
class BlobStore {
  public:
    BlobStore(const fs::path& package, PackageManifest manifest)
        : package_(package),
          manifest_(std::move(manifest)) {
        for (const auto& layer : manifest_.experts) old_.insert(layer.begin(), layer.end());
    }

    Status take(std::uint32_t layer, std::uint32_t expert, ByteView blob) {
        const Sha256 hash = sha256(blob);
        const fs::path folder = package_ / "weights";
        std::error_code failure;
        if (!fs::exists(folder / to_hex(hash), failure)) {
            WholeFile file(folder / to_hex(hash), folder / text(".tmp-", layer, '-', expert));
            MOEX_TRY(file.write(blob));
            MOEX_TRY(file.finish());
        }
        const std::lock_guard lock(mutex_);
        manifest_.experts[layer][expert] = hash;
        return {};
    }
    Status write_manifest() const {
        sync_directory(package_ / "weights");
        MOEX_TRY(write_whole_file(package_ / "manifest.json",
                                  as_byte_view(manifest_to_json(manifest_))));
        sync_directory(package_);
        return {};
    }
    // Removes the blobs that no expert has any more.
    void remove_old() {
        for (const auto& layer : manifest_.experts)
            for (const Sha256& hash : layer) old_.erase(hash);
        std::error_code ignored;
        for (const Sha256& hash : old_) fs::remove(package_ / "weights" / to_hex(hash), ignored);
    }

  private:
    fs::path package_;
    PackageManifest manifest_;
    std::set<Sha256> old_;
    std::mutex mutex_;
};

// A package as a hub serves it.
struct ServedPackage {
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<LocalExperts> experts;

    static Result<ServedPackage> load(const std::shared_ptr<const ModelPackage>& package,
                                      ThreadPool& threads) {
        MOEX_ASSIGN(decoder, Decoder::create(package, threads, {.arithmetic = Arithmetic::int8}));
        return ServedPackage{
            std::move(decoder),
            std::make_unique<LocalExperts>(package, threads, ExpertRounding{}, Arithmetic::int8)};
    }
    ReadingModel reading() const { return {*decoder, *experts, KvDtype::f16}; }
};

void print_divergence(const char* when, const Divergence& found) {
    std::printf(
        "%s: perplexity %.4f, %.4fx of the checkpoint's %.4f; kl %.5f; the same likeliest "
        "token at %.2f %% of %llu positions\n",
        when, found.perplexity, found.perplexity / found.reference_perplexity,
        found.reference_perplexity, found.mean_kl, 100 * found.same_likeliest,
        static_cast<unsigned long long>(found.num_predictions));
}

void print_error(const CalibratedError& error, std::uint32_t num_unreached) {
    if (error.squares > 0)
        std::printf(
            "experts: nmse of weights %.3g before, %.3g after; of outputs %.3g before, %.3g "
            "after\n",
            error.rounding / error.squares, error.calibrated / error.squares,
            error.output_rounding / error.output_squares,
            error.output_calibrated / error.output_squares);
    if (num_unreached > 0)
        std::printf("%u experts that the text never uses are rounded plainly\n", num_unreached);
}

// Quantises the experts of a package for a text. The steps of run() are its public functions.
class PackCalibration {
  public:
    PackCalibration(const PackInput& input, const fs::path& directory,
                    const CalibratedPackOptions& options, ThreadPool& threads)
        : input_(input),
          directory_(directory),
          options_(options),
          threads_(threads) {}

    Status run() {
        MOEX_ASSIGN(package, ModelPackage::open(directory_));
        MOEX_TRY(read_text(*package));
        MOEX_ASSIGN(decoder, Decoder::create(package, threads_, {.arithmetic = Arithmetic::exact}));

        const fs::path manifest_path = directory_ / "manifest.json";
        MOEX_ASSIGN(manifest_text, read_text_file(manifest_path, manifest_bytes_max));
        MOEX_ASSIGN(manifest, parse_manifest(manifest_text, manifest_path.string()));
        BlobStore store(directory_, std::move(manifest));
        MOEX_TRY(quantize(*decoder, store));
        MOEX_TRY(store.write_manifest());

        MOEX_ASSIGN(calibrated, ModelPackage::open(directory_));
        MOEX_TRY(compare(*decoder, package, calibrated));
        store.remove_old();
        return {};
    }

  private:
    Status read_text(const ModelPackage& package) {
        const auto tokenizer_json = package.tokenizer_file("tokenizer.json");
        if (!tokenizer_json)
            return Error{ErrorCode::unsupported,
                         text(directory_.string(), ": has no tokenizer to calibrate with")};
        MOEX_ASSIGN(tokenizer,
                    Tokenizer::load(*tokenizer_json,
                                    package.tokenizer_file("tokenizer_config.json").value_or("")));
        MOEX_ASSIGN(windows, windows_of(input_.config, *tokenizer, options_));
        windows_ = std::move(windows);
        begin_token_ = tokenizer->begin_token();
        return {};
    }

    Status quantize(Decoder& decoder, BlobStore& store) {
        ProgressLine line(options_.progress_lines);
        const TimePoint started_at = now_steady();
        const std::uint32_t num_layers = input_.config.num_layers,
                            num_experts = input_.config.num_experts;
        CalibratingExperts experts(
            input_, options_.quantizer, threads_,
            [&](std::uint32_t layer, std::uint32_t expert, ByteView blob) {
                return store.take(layer, expert, blob);
            },
            [&](std::uint32_t layer, std::uint32_t done) {
                const double share = (layer + static_cast<double>(done) / num_experts) / num_layers;
                line.show(share, text("calibrating: layer ", layer, "/", num_layers, ", expert ",
                                      done, time_left_text(started_at, share)));
            });
        MOEX_TRY(read_in_one_step(decoder, experts, windows_, begin_token_));
        error_ = experts.error();
        num_unreached_ = experts.num_unreached();
        return {};
    }

    // Compares both packages, as a hub serves them, with the checkpoint on the end of the text.
    Status compare(Decoder& decoder, const std::shared_ptr<const ModelPackage>& package,
                   const std::shared_ptr<const ModelPackage>& calibrated) {
        MOEX_ASSIGN(before, ServedPackage::load(package, threads_));
        MOEX_ASSIGN(after, ServedPackage::load(calibrated, threads_));
        CheckpointExperts exact(input_, threads_);
        const ReadingModel served[] = {before.reading(), after.reading()};
        std::vector<Divergence> found;
        {
            ProgressLine line(options_.progress_lines);
            MOEX_ASSIGN(measured,
                        measure_divergence(
                            {decoder, exact, KvDtype::f32}, served, windows_.tail,
                            {.window_tokens = windows_.window_tokens, .begin_token = begin_token_},
                            window_progress(line, "comparing")));
            found = std::move(measured);
        }
        print_error(error_, num_unreached_);
        print_divergence("before", found[0]);
        print_divergence("after", found[1]);
        return {};
    }

    const PackInput& input_;
    const fs::path& directory_;
    const CalibratedPackOptions& options_;
    ThreadPool& threads_;
    CalibrationWindows windows_;
    std::optional<TokenId> begin_token_;
    CalibratedError error_;
    std::uint32_t num_unreached_ = 0;
};

}  // namespace

Status calibrate_experts_of(const fs::path& checkpoint, const fs::path& package,
                            const PackOptions& options, const CalibratedPackOptions& calibration,
                            ThreadPool& threads) {
    MOEX_ASSIGN(input, read_pack_input(checkpoint, options));
    if (!input.config.has_experts())
        return Error{ErrorCode::unsupported, "a dense model has no experts to calibrate"};
    const bool all_kept = std::all_of(
        input.experts.begin(), input.experts.end(), [](const std::vector<ExpertSource>& layer) {
            return std::all_of(layer.begin(), layer.end(), keeps_codes);
        });
    if (all_kept) {
        std::printf("experts: all codes are the checkpoint's own, none is calibrated\n");
        return {};
    }
    return PackCalibration(input, package, calibration, threads).run();
}

}  // namespace moex
