// argv to a command: what runs, what is printed, which exit code.
#include "hub/commands/command_line.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "hub/commands/self_signed.h"
#include "hub/commands/serve/qr.h"
#include "hub/commands/serve/serve_options.h"
#include "hub/commands/version.h"

namespace moex {
namespace {

std::optional<std::string> no_environment(const std::string& name) {
    // Not the configuration of whoever runs the tests.
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

TEST(CommandLineTest, KeysHaveNoFlag) {
    EXPECT_TRUE(
        std::holds_alternative<ParsedExit>(parse({"serve", "--api-key", "0123456789abcdef"})));
    EXPECT_TRUE(
        std::holds_alternative<ParsedExit>(parse({"serve", "--admin-key", "0123456789abcdef"})));
}

TEST(CommandLineTest, HelpNamesEveryOptionWithItsDefaultAndAnExample) {
    for (const Command& command : command_table()) {
        const auto parsed = parse({std::string(command.name), "--help"});
        ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed));
        const auto& help = std::get<ParsedExit>(parsed);
        EXPECT_EQ(help.code, exit_stopped);
        EXPECT_NE(help.text.find("example: moex-hub"), std::string::npos);

        for (const Setting& setting : setting_table()) {
            if (!(setting.commands & command.mask)) continue;
            const bool shown = help.text.find(setting.kind == SettingKind::secret
                                                  ? environment_name(setting)
                                                  : flag_name(setting)) != std::string::npos;
            EXPECT_EQ(shown, !setting.hidden) << command.name << " " << setting.name;
        }

        for (const Argument& argument : command.arguments)
            EXPECT_NE(help.text.find(argument.name), std::string::npos) << argument.name;
    }
    const auto serve_help = command_help(
        *std::find_if(command_table().begin(), command_table().end(),
                      [](const Command& one) { return one.name == "serve"; }));
    EXPECT_NE(serve_help.find("[127.0.0.1:8080]"), std::string::npos);
}

TEST(CommandLineTest, PrintConfigNeedsNoPositionals) {
    const auto parsed = parse({"pack", "--print-config"});
    ASSERT_TRUE(std::holds_alternative<ParsedExit>(parsed));
    EXPECT_EQ(std::get<ParsedExit>(parsed).code, exit_stopped);
    EXPECT_NE(std::get<ParsedExit>(parsed).text.find("expert_dtype = \"int4\""), std::string::npos);
}

// The swarm's options as `moex-hub serve FLAGS` gives them.
SwarmOptions swarm_options(std::vector<std::string> flags) {
    const auto folder = std::filesystem::temp_directory_path() /
                        text("moex-serve-options-", ::getpid());
    const auto package = ModelPackage::open(MOEX_SOURCE_DIR "/static/models/demo");
    auto registry = Registry::open(folder);
    MOEX_CHECK(package.ok() && registry.ok(), "the demo and a fresh state folder open");

    flags.insert(flags.begin(), "serve");
    const auto parsed = parse(flags);
    SwarmOptions options = swarm_options_of(std::get<ParsedCommand>(parsed).invocation.settings,
                                            *package, **registry);
    options.token_ok = nullptr;  // it asks the registry, which goes now
    (*registry).reset();
    std::filesystem::remove_all(folder);
    return options;
}

TEST(ServeOptionsTest, HowLongARoundWaitsForAHolderIsASetting) {
    EXPECT_EQ(swarm_options({}).holder_wait, 8s);
    EXPECT_EQ(swarm_options({}).holder_wait_unseen, 2s);

    const SwarmOptions given = swarm_options(
        {"--holder-wait-s", "5", "--holder-wait-unseen-s", "1"});
    EXPECT_EQ(given.holder_wait, 5s);
    EXPECT_EQ(given.holder_wait_unseen, 1s);
}

TEST(VersionTest, ItStandsInCMakeAndInNoSource) {
    namespace fs = std::filesystem;
    for (const char* folder : {"hub", "web-worker", "static/js"})
        for (const auto& entry :
             fs::recursive_directory_iterator(fs::path(MOEX_SOURCE_DIR) / folder)) {
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
