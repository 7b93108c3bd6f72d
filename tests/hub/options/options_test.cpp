// Tests the table of settings: every setting is taken from flag, environment, file and default in
// this order, and an error about a wrong value names the setting.
#include "hub/options/options.h"
#include "hub/options/options_shadow.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

namespace moex {
namespace {

using Flags = std::map<std::string, std::vector<std::string>>;

std::optional<std::string> no_environment(const std::string&) { return std::nullopt; }

// Returns three values that the setting accepts: for the flag, the environment and the file. Each
// value differs from the default if the setting has enough values.
std::vector<std::string> three_values(const Setting& setting) {
    const std::string name(setting.name);
    switch (setting.kind) {
        case SettingKind::number:
        case SettingKind::real: {
            const auto low = static_cast<std::uint64_t>(setting.min);
            std::vector<std::string> out;
            for (std::uint64_t value = low + 1; out.size() < 3; ++value)
                if (std::to_string(value) != setting.default_value)
                    out.push_back(std::to_string(value));
            return out;
        }
        case SettingKind::flag:
        case SettingKind::on_off:
            return setting.default_value == "on" ? std::vector<std::string>{"off", "on", "off"}
                                                 : std::vector<std::string>{"on", "off", "on"};
        case SettingKind::list:
            if (name == "cors-origin")
                return {"https://flag.example", "https://environment.example",
                        "https://file.example"};
            if (name == "trusted-proxy") return {"127.0.0.1", "::1", "10.0.0.1"};
            return {"flag", "environment", "file"};
        case SettingKind::secret: return {"", "environment-secret", "file-secret"};
        case SettingKind::text: break;
    }

    if (!setting.choices.empty()) {
        std::vector<std::string> out;
        std::string_view rest = setting.choices;
        while (!rest.empty()) {
            const std::size_t bar = std::min(rest.find('|'), rest.size());
            out.emplace_back(rest.substr(0, bar));
            rest.remove_prefix(std::min(bar + 1, rest.size()));
        }
        while (out.size() < 3) out.push_back(out[out.size() - 2]);
        return out;
    }

    if (name == "listen") return {"127.0.0.1:1", "[::1]:2", "0.0.0.0:3"};
    if (name == "prefetch-replay") return {"1.0", "0.96+1", "0"};
    if (name == "speculative") return {"off", "4", "auto"};
    if (name == "kv-disk-mb") return {"0", "64", "100"};
    if (name == "store") return {"postgresql://a/x", "postgresql:///y", "postgresql://[::1]:5/z"};
    if (name == "hedge") return {"fixed 2", "fixed 3", "fixed 4"};
    if (name == "prefetch") return {"4", "on", "shadow:models/int2"};
    if (name == "placement") return {"groups 4", "hash", "fan-out"};
    if (name == "group") return {"32", "64", "auto"};
    if (name == "seed" || name == "temperature" || name == "top-p") return {"1", "2", "3"};
    return {"from-flag", "from-environment", "from-file"};
}

class OptionsTest : public testing::Test {
  protected:
    ~OptionsTest() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path write_file(const std::string& content) {
        std::filesystem::create_directories(folder_);
        const auto path = folder_ / "config.toml";
        std::ofstream(path) << content;
        return path;
    }

    std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                    ("moex-options-" + std::to_string(::getpid()));
};

std::string toml_of(const Setting& setting, const std::string& value) {
    switch (setting.kind) {
        case SettingKind::number:
        case SettingKind::real: return file_key(setting) + " = " + value + "\n";
        case SettingKind::flag:
        case SettingKind::on_off:
            return file_key(setting) + " = " + (value == "on" ? "true" : "false") + "\n";
        case SettingKind::list: return file_key(setting) + " = [\"" + value + "\"]\n";
        default: return file_key(setting) + " = \"" + value + "\"\n";
    }
}

TEST_F(OptionsTest, EverySettingTakesFlagThenEnvironmentThenFileThenDefault) {
    std::size_t num_checked = 0;
    for (const Setting& setting : setting_table()) {
        SCOPED_TRACE(setting.name);
        const std::string name(setting.name);
        // the lowest bit: one of the commands that take the setting
        const unsigned command = setting.commands & -setting.commands;
        const auto values = three_values(setting);
        const auto file = write_file(toml_of(setting, values[2]));
        const Flags flags{{name, {values[0]}}};
        const auto environment = [&](const std::string& asked) -> std::optional<std::string> {
            return asked == environment_name(setting) ? std::optional(values[1]) : std::nullopt;
        };

        const auto expect = [&](const Result<Settings>& settings, SettingSource source,
                                const std::string& value) {
            ASSERT_TRUE(settings.ok()) << settings.error().message;
            EXPECT_EQ(settings->source(name), source);
            if (setting.kind == SettingKind::flag || setting.kind == SettingKind::on_off)
                EXPECT_EQ(settings->on(name), value == "on");
            else if (setting.kind == SettingKind::list)
                EXPECT_EQ(settings->list(name),
                          value.empty() ? std::vector<std::string>{} : std::vector{value});
            else
                EXPECT_EQ(settings->text(name), value);
        };

        // secrets have no flag, because every process can read argv
        if (setting.kind == SettingKind::secret)
            expect(resolve_settings(command, flags, environment, file), SettingSource::environment,
                   values[1]);
        else
            expect(resolve_settings(command, flags, environment, file), SettingSource::flag,
                   values[0]);
        expect(resolve_settings(command, {}, environment, file), SettingSource::environment,
               values[1]);
        expect(resolve_settings(command, {}, no_environment, file), SettingSource::file, values[2]);
        expect(resolve_settings(command, {}, no_environment, std::nullopt),
               SettingSource::default_value, std::string(setting.default_value));
        ++num_checked;
    }

    EXPECT_EQ(num_checked, setting_table().size());
    EXPECT_GE(num_checked, 45u);
}

TEST_F(OptionsTest, NamesAreUniqueAndEverySettingHasHelp) {
    std::set<std::string_view> names;
    for (const Setting& setting : setting_table()) {
        EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
        EXPECT_FALSE(setting.help.empty()) << setting.name;
        EXPECT_NE(setting.commands, 0u) << setting.name;
    }
}

TEST_F(OptionsTest, NonsenseIsRefusedByNameAndSource) {
    const struct {
        const char* name;
        const char* value;
    } cases[] = {{"listen", "nowhere"},
                 {"listen", "127.0.0.1:99999"},
                 {"listen", "::1:80"},
                 {"replicas", "0"},
                 {"replicas", "two"},
                 {"replicas", "-1"},
                 {"hedge", "sometimes"},
                 {"prefetch-replay", "1.5"},
                 {"prefetch-replay", "0.5+2"},
                 {"prefetch-replay", "1.5+1"},
                 {"prefetch-replay", "+1"},
                 {"hedge", "fixed 0"},
                 {"prefetch", "some"},
                 {"prefetch", "shadow:"},
                 {"prefetch-by", "oracle"},
                 {"prefetch-by", ""},
                 {"experts", "guess"},
                 {"experts", ""},
                 {"prefetch", "0"},
                 {"prefetch", "-4"},
                 {"local-fallback", "maybe"},
                 {"backend", "gpu"},
                 {"cors-origin", "https://a.example/path"},
                 {"cors-origin", "a.example"},
                 {"wire-dtype", "f64"},
                 {"log-level", "loud"},
                 {"queue-max", "1e3"},
                 {"trusted-proxy", "proxy.example"}};
    for (const auto& one : cases) {
        SCOPED_TRACE(std::string(one.name) + " " + one.value);
        const auto by_flag = resolve_settings(command_serve, {{one.name, {one.value}}},
                                              no_environment, std::nullopt);
        ASSERT_FALSE(by_flag.ok());
        EXPECT_NE(by_flag.error().message.find(std::string("--") + one.name), std::string::npos)
            << by_flag.error().message;
        EXPECT_NE(by_flag.error().message.find(one.value), std::string::npos)
            << by_flag.error().message;
    }

    const auto by_environment = resolve_settings(
        command_serve, {},
        [](const std::string& name) {
            return name == "MOEX_QUEUE_MAX" ? std::optional<std::string>("many") : std::nullopt;
        },
        std::nullopt);
    ASSERT_FALSE(by_environment.ok());
    EXPECT_NE(by_environment.error().message.find("MOEX_QUEUE_MAX"), std::string::npos);
}

TEST_F(OptionsTest, MisspeltKeyOfTheFileIsRefusedWithItsLine) {
    const auto settings = resolve_settings(command_serve, {}, no_environment,
                                           write_file("replicas = 2\nreplica = 3\n"));
    ASSERT_FALSE(settings.ok());
    EXPECT_NE(settings.error().message.find(":2: unknown key \"replica\""), std::string::npos)
        << settings.error().message;

    const auto broken = resolve_settings(command_serve, {}, no_environment,
                                         write_file("replicas = \n"));
    ASSERT_FALSE(broken.ok());
    EXPECT_NE(broken.error().message.find("config.toml:1"), std::string::npos)
        << broken.error().message;
}

TEST_F(OptionsTest, PrintedSettingsReadBackAndHideSecrets) {
    const auto environment = [](const std::string& name) {
        return name == "MOEX_API_KEY" ? std::optional<std::string>("a-very-secret-key")
                                      : std::nullopt;
    };
    const auto settings = resolve_settings(
        command_serve, {{"host", {"a.example", "b.example"}}, {"replicas", {"5"}}}, environment,
        std::nullopt);
    ASSERT_TRUE(settings.ok());

    const std::string printed = settings->print(command_serve);
    EXPECT_EQ(printed.find("a-very-secret-key"), std::string::npos);
    EXPECT_NE(printed.find("# flag"), std::string::npos);

    const auto again = resolve_settings(command_serve, {}, no_environment, write_file(printed));
    ASSERT_TRUE(again.ok()) << again.error().message << "\n" << printed;
    EXPECT_EQ(again->number("replicas"), 5u);
    EXPECT_EQ(again->list("host"), (std::vector<std::string>{"a.example", "b.example"}));
    EXPECT_EQ(again->source("replicas"), SettingSource::file);
}

// The settings that --print-config prints are equal after they are read back, with defaults and
// with every value set.
TEST_F(OptionsTest, EveryCommandsPrintReadsBackAsItWas) {
    Flags odd;
    for (const Setting& setting : setting_table())
        odd[std::string(setting.name)] = {three_values(setting)[0]};
    odd["name"] = {"quo\"te \\ tab\t line\n # no comment \x7f"};
    odd["queue-max"] = {"007"};
    odd["host"] = {"one", "two\""};

    for (const unsigned command :
         {command_serve, command_generate, command_eval, command_predict, command_inspect,
          command_pack, command_synth, command_cert, command_verify, command_backup, command_pull,
          command_models, command_chat})
        for (const Flags& flags : {Flags{}, odd}) {
            const auto settings = resolve_settings(command, flags, no_environment, std::nullopt);
            ASSERT_TRUE(settings.ok()) << settings.error().message;

            const std::string printed = settings->print(command);
            const auto again = resolve_settings(command, {}, no_environment, write_file(printed));
            ASSERT_TRUE(again.ok()) << again.error().message << "\n" << printed;

            for (const Setting& setting : setting_table()) {
                if (!(setting.commands & command) || setting.is_hidden() ||
                    setting.kind == SettingKind::secret)
                    continue;

                if (setting.kind == SettingKind::number)
                    EXPECT_EQ(again->number(setting.name), settings->number(setting.name))
                        << printed;
                else if (setting.kind == SettingKind::flag || setting.kind == SettingKind::on_off)
                    EXPECT_EQ(again->on(setting.name), settings->on(setting.name)) << printed;
                else
                    EXPECT_EQ(again->list(setting.name), settings->list(setting.name)) << printed;
            }
        }
}

// Resolves the setting `name` with `value` and returns the error, or an empty text.
std::string refusal_of(const char* name, const std::string& value) {
    const auto settings = resolve_settings(command_serve, {{name, {value}}}, no_environment,
                                           std::nullopt);
    return settings.ok() ? std::string() : settings.error().message;
}

TEST_F(OptionsTest, ShadowFolderIsUnderstood) {
    EXPECT_TRUE(names_shadow("shadow:models/int2"));
    EXPECT_FALSE(names_shadow("on"));
    for (const char* folder : {"models/int2", "./served", "C:models", "a:b/c:d", "7"}) {
        const auto parsed = parse_shadow_folder(std::string("shadow:") + folder);
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        EXPECT_EQ(*parsed, folder);
    }
}

// Every old spelling of --prefetch shadow:DIR is refused with a sentence that says what to write
// instead.
TEST_F(OptionsTest, OldShadowSpellingsAreRefusedWithTheNewOne) {
    const struct {
        const char* value;
        const char* instead;
    } cases[] = {{"shadow:models/int2:3", "write --prefetch shadow:models/int2"},
                 {"shadow:models/int2,kv=16", "write --prefetch shadow:models/int2"},
                 {"shadow:models/int2,token=4,kv=0", "write --prefetch shadow:models/int2"},
                 {"shadow:models/int2:3,fetch=8", "write --prefetch shadow:models/int2"},
                 {"shadow:models/int2,ahead=0", "write --prefetch shadow:models/int2"},
                 {"shadow:models/int2,", "write --prefetch shadow:models/int2"},
                 {"shadow:served:2", "write --prefetch shadow:DIR"},
                 {"shadow:served", "write --prefetch shadow:DIR"},
                 {"shadow:,kv=2", "write --prefetch shadow:DIR"},
                 {"shadow::2", "write --prefetch shadow:DIR"},
                 {"shadow:", "write --prefetch shadow:DIR"}};
    for (const auto& one : cases) {
        const std::string refusal = refusal_of("prefetch", one.value);
        EXPECT_NE(refusal.find(std::string("\"") + one.value + '"'), std::string::npos) << refusal;
        EXPECT_NE(refusal.find(one.instead), std::string::npos) << refusal;
    }
}

TEST_F(OptionsTest, OldExpertModesAreRefusedWithTheTwoServedModes) {
    for (const char* mode :
         {"early", "early:1", "early:2", "next-gate", "next-gate+weights", "quasi-hidden",
          "quasi-hidden:6", "estimator+weights", "estimator:8", "estimator+early:1", "hybrid",
          "hybrid+weights", "linear", "router-free", "router-free+early:2", "speculative:2"}) {
        const std::string refusal = refusal_of("experts", mode);
        EXPECT_NE(refusal.find(std::string("--experts: \"") + mode + '"'), std::string::npos)
            << refusal;
        EXPECT_NE(refusal.find("write speculative or estimator"), std::string::npos) << refusal;
    }
    for (const char* mode : {"exact", "speculative", "estimator"})
        EXPECT_EQ(refusal_of("experts", mode), "");
}

TEST_F(OptionsTest, OldPredictorsAreRefusedWithTheServedOnes) {
    for (const char* predictor :
         {"previous-token", "lru", "lfu", "popularity", "request-popularity", "random", "linear"}) {
        const std::string refusal = refusal_of("prefetch-by", predictor);
        EXPECT_NE(refusal.find(std::string("--prefetch-by: \"") + predictor + '"'),
                  std::string::npos)
            << refusal;
        EXPECT_NE(refusal.find("write next-gate, quasi-hidden or estimator"), std::string::npos)
            << refusal;
        EXPECT_NE(refusal.find("foresight_bench measures"), std::string::npos) << refusal;
    }
    for (const char* predictor : {"auto", "next-gate", "quasi-hidden", "estimator"})
        EXPECT_EQ(refusal_of("prefetch-by", predictor), "");
}

// A setting that the short help no longer lists still has a flag, a variable and a key.
TEST_F(OptionsTest, SettingsOutsideTheShortHelpStillWork) {
    std::size_t num_checked = 0;
    for (const char* name : {"any-model-name",
                             "use-workers",
                             "spans",
                             "hot-copies",
                             "wire-dtype",
                             "wire-x",
                             "queue-depth",
                             "micro-batches",
                             "speculative",
                             "draft",
                             "lz4",
                             "holder-wait-s",
                             "holder-wait-unseen-s",
                             "late-calls-max",
                             "prefetch-by",
                             "spin",
                             "gpu-awake",
                             "step-stretch",
                             "request-memory-mb",
                             "text-mb-per-minute",
                             "connections-per-address",
                             "workers-per-address",
                             "net-threads",
                             "qr",
                             "prefix-cache",
                             "kv-disk-mb",
                             "kv-disk-hours",
                             "kv-key-file",
                             "max-tokens-default"})
        for (const Setting& setting : setting_table()) {
            if (setting.name != name) continue;
            EXPECT_EQ(setting.shown, SettingShown::help_all) << name;
            const std::string value = three_values(setting)[0];
            EXPECT_EQ(refusal_of(name, value), "");
            const auto by_file = resolve_settings(command_serve, {}, no_environment,
                                                  write_file(toml_of(setting, value)));
            ASSERT_TRUE(by_file.ok()) << by_file.error().message;
            EXPECT_EQ(by_file->source(name), SettingSource::file);
            const auto by_variable = resolve_settings(
                command_serve, {},
                [&](const std::string& asked) {
                    return asked == environment_name(setting) ? std::optional(value) : std::nullopt;
                },
                std::nullopt);
            ASSERT_TRUE(by_variable.ok()) << by_variable.error().message;
            EXPECT_EQ(by_variable->source(name), SettingSource::environment);
            ++num_checked;
        }
    EXPECT_EQ(num_checked, 29u);
}

TEST_F(OptionsTest, ListenAddressesAreUnderstood) {
    const struct {
        const char* listen;
        const char* address;
        int port;
    } cases[] = {{"127.0.0.1:8080", "127.0.0.1", 8080},
                 {"[::1]:0", "::1", 0},
                 {":80", "0.0.0.0", 80},
                 {"*:80", "0.0.0.0", 80},
                 {"localhost:1", "127.0.0.1", 1}};
    for (const auto& one : cases) {
        const auto parsed = parse_listen(one.listen);
        ASSERT_TRUE(parsed.ok()) << one.listen;
        EXPECT_EQ(parsed->address, one.address);
        EXPECT_EQ(parsed->port, one.port);
    }
}

}  // namespace
}  // namespace moex
