// Every setting of moex-hub in one table. The value of a setting is read from, in this order:
//   flag (--queue-max 8), environment (MOEX_QUEUE_MAX=8), TOML file (queue_max = 8), default.
// Keys are the exception: they have no flag, because every process of the machine can read argv.
// This folder owns names, help texts, validation and precedence of settings; the commands own their
// meaning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

enum class SettingKind {
    text,    // --model DIR
    number,  // a whole number within [min, max]: --queue-max N
    real,    // a number within [min, max]: --temperature T
    on_off,  // --local-fallback on|off
    flag,    // --deterministic; in environment and file: on or off
    list,    // repeatable: --host NAME; comma-separated in the environment, an array in the file
    secret,  // a secret text, which only environment and file may give
};

// Bits for the commands that take a setting.
enum CommandMask : unsigned {
    command_serve = 1,
    command_generate = 2,
    command_eval = 4,
    command_inspect = 8,
    command_pack = 16,
    command_synth = 32,
    command_cert = 64,
    command_verify = 128,
    command_key = 256,
    command_ban = 512,
    command_predict = 1024,
    command_backup = 2048,
    command_pull = 4096,
    command_models = 8192,  // models and rm
    command_chat = 16384,
    command_forget = 32768,
    command_sign = 65536,
    command_fleet = 131072,
    command_front = 262144,
};

// The section of the help, and of --print-config, in which a setting is listed.
enum class SettingGroup { address, model, contributors, logs };
inline constexpr SettingGroup setting_groups[] = {SettingGroup::address, SettingGroup::model,
                                                  SettingGroup::contributors, SettingGroup::logs};
const char* setting_group_title(SettingGroup group);  // "Address and keys"

// The help texts of serve in which a setting is listed. Every setting has a flag, a variable and a
// key, even if no help text lists it.
enum class SettingShown {
    always,    // listed in --help: a choice of the operator that the program cannot measure
    help_all,  // in --help-all only
    never,     // listed in no help text: switches of tests and benches
};

struct Setting {
    // name of the setting, e.g. "queue-max": the flag is --queue-max, the environment variable
    // MOEX_QUEUE_MAX, the key queue_max
    std::string_view name;
    SettingKind kind = SettingKind::text;
    unsigned commands = 0;  // CommandMask
    SettingShown shown = SettingShown::help_all;
    std::string_view value_name;     // placeholder in the help, e.g. "N"
    std::string_view default_value;  // default value as text; empty for lists and unset texts
    // Help text of the setting. Its first line is the short help. The lines behind it are for
    // --help-all and the operator page: "what computes experts\nswarm: tabs and workers\nlocal:
    // this machine alone".
    std::string_view help;
    double min = 0, max = 0;  // bounds of settings of kind number and real
    // allowed words of a text setting, "swarm|local"; empty: any text
    std::string_view choices = {};
    // An extra check of the value, made before the check of `choices`. nullptr: no extra check.
    Status (*check)(std::string_view) = nullptr;
    SettingGroup group = SettingGroup::model;  // setting_table() writes it

    bool is_hidden() const { return shown == SettingShown::never; }
    std::string_view help_line() const { return help.substr(0, help.find('\n')); }
};

std::span<const Setting> setting_table();

std::string flag_name(const Setting& setting);         // --queue-max
std::string environment_name(const Setting& setting);  // MOEX_QUEUE_MAX
std::string file_key(const Setting& setting);          // queue_max

enum class SettingSource { default_value, file, environment, flag };
const char* setting_source_name(SettingSource source);

// The values of all settings for one run of a command. A getter requires that the table has a
// setting of this name and kind.
class Settings {
  public:
    const std::string& text(std::string_view name) const;
    std::uint64_t number(std::string_view name) const;
    double real(std::string_view name) const;
    bool on(std::string_view name) const;
    const std::vector<std::string>& list(std::string_view name) const;
    // Returns true if a flag, an environment variable or the file set the value.
    bool given(std::string_view name) const { return source(name) != SettingSource::default_value; }
    SettingSource source(std::string_view name) const;

    // Returns the settings in effect as TOML, each with its source. Secrets are masked.
    std::string print(unsigned command) const;
    // Returns the value of `setting` as text for people: the items of a list are joined by ", ",
    // and a secret is shown as "set" or "not set".
    std::string shown(const Setting& setting) const;

    // Copies the value of setting `name`, and the source of the value, from `from`.
    void take(std::string_view name, const Settings& from);
    // Returns true if this object and `other` have the same value of setting `name`, whatever the
    // sources are.
    bool equal(std::string_view name, const Settings& other) const;

  private:
    friend Result<Settings> resolve_settings(
        unsigned, const std::map<std::string, std::vector<std::string>>&,
        const std::function<std::optional<std::string>(const std::string&)>&,
        const std::optional<std::filesystem::path>&);

    struct Value {
        std::vector<std::string> values;
        SettingSource source = SettingSource::default_value;
    };
    const Value& value(std::string_view name) const;
    std::map<std::string, Value, std::less<>> values_;
};

// Resolves and checks every setting of `command`. `flags` has the values of the command line by
// setting name, `environment` is getenv or a test's map, and `file` is a TOML file, if there is
// one. An error is a sentence that names the setting, its source, the value found and the value
// wanted.
Result<Settings> resolve_settings(
    unsigned command, const std::map<std::string, std::vector<std::string>>& flags,
    const std::function<std::optional<std::string>(const std::string&)>& environment,
    const std::optional<std::filesystem::path>& file);

// Returns the path of the default configuration file, $XDG_CONFIG_HOME/moex/config.toml or
// ~/.config/moex/config.toml, if the file exists.
std::optional<std::filesystem::path> default_config_file();

// An address on which the hub listens: "127.0.0.1:8080", "[::1]:0", ":8080" (all addresses),
// "localhost:80".
struct ListenAddress {
    std::string address;
    std::uint16_t port = 0;
};
Result<ListenAddress> parse_listen(std::string_view listen);

}  // namespace moex
