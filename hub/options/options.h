// Every setting of moex-hub in one table. A setting is taken from, in this order:
//   flag (--queue-max 8), environment (MOEX_QUEUE_MAX=8), TOML file (queue_max = 8), default.
// Keys are the exception: they never come by argv, where every process of the machine reads them.
// Owns names, help, validation and precedence; leaves the meaning to the commands.
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
    number,  // --queue-max N, a whole number within [min, max]
    real,    // --temperature T, within [min, max]
    on_off,  // --local-fallback on|off
    flag,    // --deterministic; on|off elsewhere
    list,    // --host NAME, repeatable; comma-separated in the environment, an array in the file
    secret,  // environment and file only
};

// Which commands take a setting, as bits.
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
};

struct Setting {
    // "queue-max": the flag is --queue-max, the environment MOEX_QUEUE_MAX, the key queue_max
    std::string_view name;
    SettingKind kind = SettingKind::text;
    unsigned commands = 0;           // CommandMask
    std::string_view value_name;     // "N" in the help
    std::string_view default_value;  // as text; lists and unset texts are empty
    std::string_view help;
    double min = 0, max = 0;   // of number and real
    std::string_view choices;  // of text: "swarm|local"; empty allows any
    Status (*check)(std::string_view) = nullptr;
    bool hidden = false;  // left out of the help
};

std::span<const Setting> setting_table();

std::string flag_name(const Setting& setting);         // --queue-max
std::string environment_name(const Setting& setting);  // MOEX_QUEUE_MAX
std::string file_key(const Setting& setting);          // queue_max

enum class SettingSource { default_value, file, environment, flag };
const char* setting_source_name(SettingSource source);

// The values that one command runs with. Getters demand a name and kind of the table.
class Settings {
  public:
    const std::string& text(std::string_view name) const;
    std::uint64_t number(std::string_view name) const;
    double real(std::string_view name) const;
    bool on(std::string_view name) const;
    const std::vector<std::string>& list(std::string_view name) const;
    // Something other than the default gave the value.
    bool given(std::string_view name) const { return source(name) != SettingSource::default_value; }
    SettingSource source(std::string_view name) const;

    // The effective settings as TOML with each one's source; secrets are masked.
    std::string print(unsigned command) const;
    // One setting as people read it: values of a list between commas; of a secret only whether it
    // is set.
    std::string shown(const Setting& setting) const;

    // The value and source that `from` has.
    void take(std::string_view name, const Settings& from);
    // Whether both hold the same value, whatever it came from.
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

// `flags`: what the command line gave, by setting name. `environment`: getenv or a test's map.
// `file`: a TOML file, or none.
// An error is a sentence that names the setting, where it came from, what was found and what is
// wanted.
Result<Settings> resolve_settings(
    unsigned command, const std::map<std::string, std::vector<std::string>>& flags,
    const std::function<std::optional<std::string>(const std::string&)>& environment,
    const std::optional<std::filesystem::path>& file);

// $XDG_CONFIG_HOME/moex/config.toml or ~/.config/moex/config.toml, when it exists.
std::optional<std::filesystem::path> default_config_file();

// "127.0.0.1:8080", "[::1]:0", ":8080" (all addresses), "localhost:80".
struct ListenAddress {
    std::string address;
    std::uint16_t port = 0;
};
Result<ListenAddress> parse_listen(std::string_view listen);

}  // namespace moex
