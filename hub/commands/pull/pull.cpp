// moex-hub pull: downloads a checkpoint from an endpoint of Hugging Face's shape, and packs it on
// request.
#include <cstdio>
#include <cstdlib>

#include "hub/commands/command.h"
#include "hub/commands/pack/pack_settings.h"
#include "hub/commands/progress.h"
#include "hub/commands/pull/models_folder.h"
#include "hub/commands/pull/streamed_shards.h"
#include "hub/commands/signals.h"
#include "hub/fetch/pull_repository.h"
#include "hub/fetch/pull_state.h"
#include "hub/model/pack/packer.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Returns the size of a package as a share of its checkpoint's weights in bf16, with some reserve.
// The packer computes the exact size, once the checkpoint is there.
double pack_share_of(const Settings& settings) {
    const std::string& dtype = settings.text("expert-dtype");
    return dtype == "f32" ? 2.1 : dtype == "bf16" ? 1.05 : 0.35;
}

Result<PullOptions> pull_options_of(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    PullOptions options;
    MOEX_ASSIGN(repository, parse_repository_name(*invocation.argument("REPO")));
    auto endpoint = parse_web_address(settings.text("endpoint"));
    if (!endpoint.ok())
        return Error{endpoint.error().code, text("--endpoint: ", endpoint.error().message)};
    const char* const token = std::getenv("HF_TOKEN");
    MOEX_ASSIGN(parsed_token, parse_token(token != nullptr ? token : ""));

    options.endpoint = *std::move(endpoint);
    options.token = std::move(parsed_token);
    options.repository = std::move(repository);
    options.http.stall_s = static_cast<std::uint32_t>(settings.number("stall-s"));
    if (const char* const authorities = std::getenv("SSL_CERT_FILE"))
        options.http.ca_file = authorities;
    options.range_bytes = settings.number("range-kb") << 10;
    if (const std::string* file = invocation.argument("--file")) options.file = *file;
    if (invocation.argument("--pack")) options.pack_share = pack_share_of(settings);

    const std::string* const given = invocation.argument("DIR");
    std::string name = options.repository.name;
    if (options.repository.revision != "main") {
        // A revision such as refs/pr/1 has slashes, and the folder's name has none.
        name += '@';
        for (const char c : options.repository.revision) name += c == '/' ? '-' : c;
    }
    options.folder = given != nullptr ? fs::path(*given) : models_folder(settings) / name;
    if (fs::exists(options.folder / "manifest.json"))
        return Error{ErrorCode::invalid_argument,
                     text(options.folder.string(), " is a package; name another folder")};
    return options;
}

void print_plan(const PullOptions& options, std::size_t num_files, std::uint64_t size_bytes,
                std::uint64_t fetch_bytes) {
    std::fprintf(stderr, "%s: %zu files, %s", options.repository.name.c_str(), num_files,
                 bytes_text(size_bytes).c_str());
    if (fetch_bytes < size_bytes)
        std::fprintf(stderr, ", %s are here already", bytes_text(size_bytes - fetch_bytes).c_str());
    std::fprintf(stderr, "\n");
}

// Stops the pull at the first signal, and the process at the second one. A signal during packing
// ends the process at once; the packer resumes too.
class PullInterruption {
  public:
    explicit PullInterruption(Pull& pull)
        : signals_([this, &pull](int count, int number) {
              if (count > 1 || is_packing_) std::_Exit(exit_signal + number);
              number_ = number;
              pull.stop();
          }) {}
    int number() const { return number_; }
    void pack_begins() { is_packing_ = true; }

  private:
    std::atomic<int> number_ = 0;
    std::atomic<bool> is_packing_ = false;
    SignalWatcher signals_;  // the last member, because its thread uses the members above
};

// Prints that a package is ready.
void print_package(const std::string& out) {
    std::printf("serve it: moex-hub serve --model %s\n", out.c_str());
}

int pack_pulled(const Invocation& invocation, const PullOptions& options) {
    Invocation pack{.settings = invocation.settings};
    const fs::path source = options.file.empty() ? options.folder : options.folder / options.file;
    const std::string out = options.folder.string() + ".moex";
    pack.arguments = {{"HF_DIR", source.string()}, {"OUT", out}};
    const int code = run_pack(pack);
    if (code == exit_stopped) print_package(out);
    return code;
}

// Downloads and packs in turn, and deletes each weight when it is packed.
Status pull_streamed(const Invocation& invocation, const PullOptions& options, Pull& pull) {
    PullReport report;
    MOEX_ASSIGN(chosen, pull.choose(report));
    MOEX_ASSIGN(pack_options, pack_options_of(invocation));
    // The package is named by the folder, as after a pull without --stream.
    if (pack_options.name.empty()) pack_options.name = options.folder.filename().string();

    std::vector<RepositoryFile> texts;
    for (const RepositoryFile& file : chosen)
        if (!file.path.ends_with(".safetensors")) texts.push_back(file);

    ProgressBar bar("streaming", invocation.settings.on("progress"));
    std::uint64_t before_bytes = 0;
    const std::uint64_t total_bytes = report.size_bytes;
    const auto fetch = [&](const std::vector<RepositoryFile>& files, PullReport& space) {
        return pull.fetch(
            files, space, [](std::size_t, std::uint64_t, std::uint64_t) {},
            [&](const DownloadProgress& now) {
                bar.show(before_bytes + now.done_bytes, total_bytes, files.back().path);
            });
    };
    print_plan(options, chosen.size(), total_bytes, total_bytes);
    MOEX_TRY(fetch(texts, report));
    MOEX_ASSIGN(shards, StreamedShards::create(
                            options.folder, chosen,
                            {.read_start =
                                 [&](const RepositoryFile& file, std::uint64_t num_bytes) {
                                     return pull.read_start(file, num_bytes);
                                 },
                             .fetch = [&](const RepositoryFile& file) -> Status {
                                 PullReport shard{.commit = report.commit};
                                 MOEX_TRY(fetch({file}, shard));
                                 before_bytes += file.size_bytes;
                                 return {};
                             }}));

    ThreadPool threads(invocation.settings.number("threads"));
    const std::string out = options.folder.string() + ".moex";
    MOEX_ASSIGN(packed,
                pack_checkpoint(
                    shards.directory(), out, pack_options, threads, {},
                    {.before_layer = [&](std::uint32_t layer) { return shards.bring_layer(layer); },
                     .after_layer = [&](std::uint32_t layer) { return shards.drop_layer(layer); },
                     .before_hub = [&] { return shards.bring_all(); }}));
    for (const std::string& warning : packed.warnings)
        std::fprintf(stderr, "warning: %s\n", one_line(warning).c_str());

    MOEX_TRY(shards.remove(chosen));
    std::error_code ignored;
    fs::remove(options.folder / pull_record_name, ignored);
    fs::remove(options.folder, ignored);  // fails if the folder has other files
    std::printf("%s: %s from %s, packed while it arrived\n", out.c_str(),
                bytes_text(packed.output_bytes).c_str(), bytes_text(total_bytes).c_str());
    return {};
}

}  // namespace

int run_pull(const Invocation& invocation) {
    auto options = pull_options_of(invocation);
    if (!options.ok()) {
        fail(options.error().message);
        return exit_wrong_arguments;
    }
    if (invocation.check_only) return exit_stopped;

    const bool streams = invocation.argument("--stream") != nullptr;
    if (streams && (!invocation.argument("--pack") || !options->file.empty())) {
        fail("--stream packs a whole checkpoint: give --pack, and leave --file out");
        return exit_wrong_arguments;
    }

    Pull pull(*options);
    PullInterruption interruption(pull);  // before any other thread
    if (streams) {
        const Status done = pull_streamed(invocation, *options, pull);
        if (!done.ok()) {
            fail(text(done.error().message, "; the same command goes on from what is here"));
            return interruption.number() != 0 ? exit_signal + interruption.number() : exit_failed;
        }
        print_package(options->folder.string() + ".moex");
        return exit_stopped;
    }
    Result<PullReport> report = Error{ErrorCode::internal, ""};
    {
        ProgressBar bar("pulling", invocation.settings.on("progress"));
        report = pull.run(
            [&](std::size_t num_files, std::uint64_t size, std::uint64_t fetch) {
                print_plan(*options, num_files, size, fetch);
            },
            [&](const DownloadProgress& now) {
                bar.show(now.done_bytes, now.total_bytes,
                         text("file ", now.num_finished, "/", now.num_files));
            });
    }
    if (!report.ok()) {
        const bool can_resume = fs::exists(options->folder / pull_state_folder);
        fail(text(report.error().message,
                  can_resume ? "; the same command goes on from what is here" : ""));
        return interruption.number() != 0 ? exit_signal + interruption.number() : exit_failed;
    }

    for (const std::string& path : report->unchecked)
        std::fprintf(stderr,
                     "warning: %s: the endpoint lists no hash, so its size alone is checked\n",
                     one_line(path).c_str());
    std::printf("%s: %zu files, %s, every %shash is right%s%s\n", options->folder.c_str(),
                report->num_files, bytes_text(report->size_bytes).c_str(),
                report->unchecked.empty() ? "" : "listed ",
                report->commit.empty() ? "" : ", commit ", report->commit.c_str());
    if (!invocation.argument("--pack")) return exit_stopped;
    interruption.pack_begins();
    return pack_pulled(invocation, *options);
}

}  // namespace moex
