// Tests of parsing argv: which command runs, which text is printed, and which exit code is
// returned.
#include "hub/commands/command_line.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <gtest/gtest.h>

#include "hub/commands/help_text.h"
#include "hub/commands/self_signed.h"
#include "hub/commands/serve/qr.h"
#include "hub/commands/serve/serve_options.h"
#include "hub/commands/version.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

std::optional<std::string> no_environment(const std::string& name) {
    // The tests must not read the configuration file of the person that runs them.
    if (name == "MOEX_CONFIG") return "/dev/null";
    return std::nullopt;
}

auto parse(std::vector<std::string> arguments) {
    return parse_command_line(arguments, no_environment);
}

TEST(CommandLineTest, FlagsReachTheirSettings) {
    const auto parsed = parse({"serve", "--model", "m", "--host", "a", "--host", "b",
                               "--deterministic", "--local-fallback", "off", "--hedge", "fixed 2"});
    ASSERT_TRUE(std::holds_alternative<ParsedCommand>(parsed)) << std::get<ParsedExit>(parsed).text;

    const auto& command = std::get<ParsedCommand>(parsed);
    EXPECT_EQ(command.command->name, "serve");
    const Settings& settings = command.invocation.settings;
    EXPECT_EQ(settings.text("model"), "m");
    EXPECT_EQ(settings.list("host"), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(settings.on("deterministic"));
    EXPECT_FALSE(settings.on("local-fallback"));
    EXPECT_EQ(settings.text("hedge"), "fixed 2");
    EXPECT_FALSE(settings.on("insecure-http"));
}

TEST(CommandLineTest, ArgumentsOfOneRunAreKeptApart) {
    const auto parsed = parse({"generate", "--prompt", "Once", "--chat", "--max-tokens", "7",
                               "--temperature", "0", "--seed", "3"});
    ASSERT_TRUE(std::holds_alternative<ParsedCommand>(parsed)) << std::get<ParsedExit>(parsed).text;

    const Invocation& invocation = std::get<ParsedCommand>(parsed).invocation;
    ASSERT_NE(invocation.argument("--prompt"), nullptr);
    EXPECT_EQ(*invocation.argument("--prompt"), "Once");
    EXPECT_NE(invocation.argument("--chat"), nullptr);
    EXPECT_EQ(invocation.argument("--margins"), nullptr);
    EXPECT_EQ(invocation.settings.number("max-tokens"), 7u);
}

TEST(CommandLineTest, APositionalMayStandBehindASetting) {
    const auto parsed = parse({"pack", "--threads", "1", "--threads", "2", "CHECKPOINT", "OUT"});
    ASSERT_TRUE(std::holds_alternative<ParsedCommand>(parsed)) << std::get<ParsedExit>(parsed).text;

    const Invocation& invocation = std::get<ParsedCommand>(parsed).invocation;
    EXPECT_EQ(invocation.settings.number("threads"), 2u);
    ASSERT_NE(invocation.argument("HF_DIR"), nullptr);
    EXPECT_EQ(*invocation.argument("HF_DIR"), "CHECKPOINT");
    EXPECT_EQ(*invocation.argument("OUT"), "OUT");
}

TEST(CommandLineTest, WrongArgumentsExitWithTwoAndASentence) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{},
                                               {"dance"},
                                               {"serve", "--nonsense"},
                                               {"serve", "--replicas", "0"},
                                               {"pack", "only-one"},
                                               {"pack"},
                                               {"synth", "out"},
                                               {"eval"},
                                               {"serve", "stray"}}) {
        const auto parsed = parse(arguments);
        ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed))
            << testing::PrintToString(arguments);
        EXPECT_EQ(std::get<ParsedExit>(parsed).code, exit_wrong_arguments);
        EXPECT_FALSE(std::get<ParsedExit>(parsed).text.empty());
    }
}

TEST(CommandLineTest, PredictNamesTheBenchThatItBecame) {
    const auto parsed = parse({"predict", "--text", "book.txt"});
    ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed));
    EXPECT_EQ(std::get<ParsedExit>(parsed).code, exit_wrong_arguments);
    EXPECT_NE(std::get<ParsedExit>(parsed).text.find("foresight_bench"), std::string::npos);
}

TEST(CommandLineTest, KeysHaveNoFlag) {
    EXPECT_TRUE(
        std::holds_alternative<ParsedExit>(parse({"serve", "--api-key", "0123456789abcdef"})));
    EXPECT_TRUE(
        std::holds_alternative<ParsedExit>(parse({"serve", "--admin-key", "0123456789abcdef"})));
}

TEST(CommandLineTest, FullHelpNamesEveryOptionAndAnExample) {
    for (const Command& command : command_table()) {
        const auto parsed = parse({std::string(command.name), "--help-all"});
        ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed));
        const auto& help = std::get<ParsedExit>(parsed);
        EXPECT_EQ(help.code, exit_stopped);
        EXPECT_NE(help.text.find("example: moex-hub"), std::string::npos);

        for (const Setting& setting : setting_table()) {
            if (!(setting.commands & command.mask)) continue;
            const bool shown = help.text.find(setting.kind == SettingKind::secret
                                                  ? environment_name(setting)
                                                  : flag_name(setting)) != std::string::npos;
            EXPECT_EQ(shown, !setting.is_hidden()) << command.name << " " << setting.name;
        }

        for (const Argument& argument : command.arguments)
            EXPECT_NE(help.text.find(argument.name), std::string::npos) << argument.name;
    }
}

std::vector<std::string> lines_of(const std::string& content) {
    std::vector<std::string> lines;
    std::istringstream in(content);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

std::string help_text(std::vector<std::string> arguments) {
    return std::get<ParsedExit>(parse(std::move(arguments))).text;
}

TEST(CommandLineTest, EveryHelpLineFitsHundredColumns) {
    std::vector<std::string> texts{help_text({"--help"})};
    for (const Command& command : command_table())
        for (const char* length : {"--help", "--help-all"})
            texts.push_back(help_text({std::string(command.name), length}));
    for (const std::string& content : texts)
        for (const std::string& line : lines_of(content)) {
            EXPECT_LE(line.size(), 100u) << line;
            EXPECT_FALSE(line.ends_with(' ')) << line;
        }
}

TEST(CommandLineTest, ServeHelpFitsOneScreenInFourGroups) {
    const std::string help = help_text({"serve", "--help"});
    EXPECT_LE(lines_of(help).size(), 45u);
    EXPECT_NE(help.find("[127.0.0.1:8080]"), std::string::npos);

    std::size_t at = 0;
    for (const char* part :
         {"\nAddress and keys\n", "\nModel and memory\n", "\nContributors\n", "\nLogs\n",
          "--help-all", "--config FILE", "example: moex-hub serve"}) {
        at = help.find(part, at);
        ASSERT_NE(at, std::string::npos) << part;
    }
    for (const char* flag : {"--net-threads", "--lz4", "--queue-depth", "--prefetch-by", "--spin"})
        EXPECT_EQ(help.find(flag), std::string::npos) << flag;
}

TEST(CommandLineTest, SettingsOutsideTheShortHelpAreStillFlags) {
    const auto parsed = parse({"serve", "--net-threads", "3", "--lz4", "--micro-batches", "2",
                               "--prefetch-by", "estimator", "--experts", "estimator"});
    ASSERT_TRUE(std::holds_alternative<ParsedCommand>(parsed)) << std::get<ParsedExit>(parsed).text;
    const auto read = read_serve_settings(std::get<ParsedCommand>(parsed).invocation.settings);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->address.limits.num_threads, 3u);
    EXPECT_TRUE(read->contributors.wire.lz4);
    EXPECT_EQ(read->model.micro_batches, 2u);
    EXPECT_EQ(read->contributors.prefetch.predictor, "estimator");
    EXPECT_EQ(read->contributors.experts, AnswerMode::estimator);
}

TEST(CommandLineTest, PrintConfigNeedsNoPositionals) {
    const auto parsed = parse({"pack", "--print-config"});
    ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed));
    EXPECT_EQ(std::get<ParsedExit>(parsed).code, exit_stopped);
    EXPECT_NE(std::get<ParsedExit>(parsed).text.find("expert_dtype = \"auto\""), std::string::npos);
}

ServeSettings serve_settings(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "serve");
    const auto parsed = parse(flags);
    return read_serve_settings(std::get<ParsedCommand>(parsed).invocation.settings).value();
}

// Returns the options that the swarm gets from `moex-hub serve FLAGS`.
SwarmOptions swarm_options(std::vector<std::string> flags) {
    const auto folder = std::filesystem::temp_directory_path() /
                        text("moex-serve-options-", ::getpid());
    const auto package = ModelPackage::open(repository() / "static/models/demo");
    auto registry = Registry::open(folder);
    MOEX_CHECK(package.ok() && registry.ok(), "the demo and a fresh state folder open");

    SwarmOptions options = swarm_options_of(serve_settings(std::move(flags)), *package, **registry);
    options.token_ok = nullptr;  // token_ok would read the registry, which is destroyed here
    (*registry).reset();
    std::filesystem::remove_all(folder);
    return options;
}

TEST(ServeOptionsTest, PrefetchModesAreRead) {
    const ModelConfig model{.top_k = 4};
    const auto prefetch = [](const char* mode) {
        return serve_settings({"--prefetch", mode}).contributors.prefetch;
    };
    EXPECT_EQ(prefetch_per_row(prefetch("off"), model), 0u);
    EXPECT_EQ(prefetch_per_row(prefetch("on"), model), 4u);
    EXPECT_EQ(prefetch_per_row(prefetch("7"), model), 7u);
    EXPECT_EQ(prefetch("7").shadow_folder, "");
    EXPECT_EQ(prefetch_per_row(prefetch("shadow:models/int3"), model), 4u);
    EXPECT_EQ(prefetch("shadow:models/int3").shadow_folder, "models/int3");
}

TEST(ServeOptionsTest, MicroBatchesStayWithinTheQueueDepth) {
    EXPECT_EQ(micro_batches_max(serve_settings({"--queue-depth", "2"})), 2u);
    EXPECT_EQ(micro_batches_max(serve_settings({"--queue-depth", "2", "--micro-batches", "3"})),
              3u);
}

TEST(ServeOptionsTest, ContradictingSettingsAreRefusedByName) {
    const struct {
        std::vector<std::string> flags;
        const char* named;
    } cases[] = {
        {{"serve", "--tls-cert", "x"}, "--tls-key"},
        {{"serve", "--tls-key", "x"}, "--tls-cert"},
        {{"serve", "--listen", "0.0.0.0:1"}, "--listen 0.0.0.0:1"},
        {{"serve", "--backend", "local", "--local-fallback", "off"}, "--local-fallback off"},
        {{"serve", "--backend", "local", "--prefetch", "shadow:x"}, "--prefetch shadow:DIR"}};
    for (const auto& one : cases) {
        const auto parsed = parse(one.flags);
        ASSERT_TRUE(std::holds_alternative<ParsedCommand>(parsed));
        const auto read = read_serve_settings(std::get<ParsedCommand>(parsed).invocation.settings);
        ASSERT_FALSE(read.ok()) << one.named;
        EXPECT_NE(read.error().message.find(one.named), std::string::npos) << read.error().message;
    }
}

TEST(ServeOptionsTest, RoundWaitsForAHolderForTheSetTime) {
    EXPECT_EQ(swarm_options({}).holder_wait, 8s);
    EXPECT_EQ(swarm_options({}).holder_wait_unseen, 2s);

    const SwarmOptions given = swarm_options(
        {"--holder-wait-s", "5", "--holder-wait-unseen-s", "1"});
    EXPECT_EQ(given.holder_wait, 5s);
    EXPECT_EQ(given.holder_wait_unseen, 1s);
}

TEST(VersionTest, VersionIsInCMakeAndInNoSource) {
    namespace fs = std::filesystem;
    for (const char* folder : {"hub", "web-worker", "static/js"})
        for (const auto& entry : fs::recursive_directory_iterator(repository() / folder)) {
            const auto extension = entry.path().extension();
            if (extension != ".cpp" && extension != ".h" && extension != ".js") continue;

            std::ifstream file(entry.path());
            const std::string content{std::istreambuf_iterator<char>(file), {}};
            for (const char* before : {" ", "\""})
                EXPECT_EQ(content.find(text(before, moex_version())), std::string::npos)
                    << entry.path();
        }
}

TEST(CertificateTest, NamesAndAddressesBecomeItsSubjects) {
    const auto made = make_self_signed({"localhost", "127.0.0.1", "::1", "hub.example"}, 30);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_TRUE(made->certificate_pem.starts_with("-----BEGIN CERTIFICATE-----"));
    EXPECT_TRUE(made->key_pem.starts_with("-----BEGIN PRIVATE KEY-----"));
    EXPECT_EQ(made->sha256_fingerprint.size(), 95u);

    EXPECT_FALSE(make_self_signed({"two names"}, 30).ok());
    EXPECT_FALSE(make_self_signed({"a,DNS:b"}, 30).ok());
}

TEST(QrTest, ALinkBecomesASquareOfHalfBlocks) {
    const std::string code = qr_half_blocks(
        "http://192.168.1.20:8080/join.html#token=AbCdEfGhIjKlMnOpQrStUvWx");

    const auto lines = std::count(code.begin(), code.end(), '\n');
    EXPECT_GE(lines, 15);
    EXPECT_NE(code.find("▀"), std::string::npos);
    EXPECT_TRUE(qr_half_blocks(std::string(10000, 'x')).empty());
}

}  // namespace
}  // namespace moex
