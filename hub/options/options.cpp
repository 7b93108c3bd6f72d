#include "hub/options/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include <toml++/toml.h>

namespace moex {
namespace {

const Setting* find_setting(std::string_view name) {
    for (const Setting& setting : setting_table())
        if (setting.name == name) return &setting;
    return nullptr;
}

std::optional<bool> parse_switch(std::string_view value) {
    for (const char* yes : {"on", "true", "1", "yes"})
        if (value == yes) return true;
    for (const char* no : {"off", "false", "0", "no"})
        if (value == no) return false;
    return std::nullopt;
}

template <class Number>
std::optional<Number> parse_whole(std::string_view value) {
    Number number{};
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size()) return std::nullopt;
    return number;
}

std::vector<std::string> split_list(std::string_view value) {
    std::vector<std::string> parts;
    while (!value.empty()) {
        const std::size_t comma = std::min(value.find(','), value.size());
        std::string_view part = value.substr(0, comma);
        while (part.starts_with(' ')) part.remove_prefix(1);
        while (part.ends_with(' ')) part.remove_suffix(1);

        if (!part.empty()) parts.emplace_back(part);
        value.remove_prefix(std::min(comma + 1, value.size()));
    }
    return parts;
}

// Returns true if `value` is one of the words of `choices`, which are joined by '|': "swarm|local".
bool is_choice(std::string_view choices, std::string_view value) {
    while (!choices.empty()) {
        const std::size_t bar = std::min(choices.find('|'), choices.size());
        if (choices.substr(0, bar) == value) return true;
        choices.remove_prefix(std::min(bar + 1, choices.size()));
    }
    return false;
}

Status check_value(const Setting& setting, std::string_view value) {
    switch (setting.kind) {
        case SettingKind::number: {
            const auto number = parse_whole<std::uint64_t>(value);
            if (!number || static_cast<double>(*number) < setting.min ||
                static_cast<double>(*number) > setting.max)
                return Error{
                    ErrorCode::invalid_argument,
                    text("wanted a whole number from ", static_cast<std::uint64_t>(setting.min),
                         " to ", static_cast<std::uint64_t>(setting.max), ", found \"", value,
                         "\"")};
            break;
        }
        case SettingKind::real: {
            const auto number = parse_whole<double>(value);
            if (!number || !(*number >= setting.min && *number <= setting.max))
                return Error{ErrorCode::invalid_argument,
                             text("wanted a number from ", setting.min, " to ", setting.max,
                                  ", found \"", value, "\"")};
            break;
        }
        case SettingKind::on_off:
        case SettingKind::flag:
            if (!parse_switch(value))
                return Error{ErrorCode::invalid_argument,
                             text("wanted on or off, found \"", value, "\"")};
            break;
        case SettingKind::text:
            // An empty text means that the setting is not set; --print-config writes such settings
            // as empty texts.
            if (value.empty() && setting.default_value.empty()) return {};
            if (setting.check) MOEX_TRY(setting.check(value));
            if (!setting.choices.empty() && !is_choice(setting.choices, value))
                return Error{ErrorCode::invalid_argument,
                             text("wanted one of ", setting.choices, ", found \"", value, "\"")};
            break;
        case SettingKind::list: return setting.check ? setting.check(value) : Status();
        case SettingKind::secret: break;
    }
    return {};
}

Result<std::string> file_scalar(const toml::node& node) {
    if (const auto* value = node.as_string()) return value->get();
    if (const auto* value = node.as_boolean()) return std::string(value->get() ? "on" : "off");
    if (const auto* value = node.as_integer()) return std::to_string(value->get());
    if (const auto* value = node.as_floating_point()) return text(value->get());
    return Error{ErrorCode::bad_field, "wanted a string, a number or true/false"};
}

// Reads all settings of one TOML file. An unknown key is an error, because a misspelt key would
// silently have no effect.
Result<std::map<std::string, std::vector<std::string>>> read_file(
    const std::filesystem::path& path) {
    std::map<std::string, std::vector<std::string>> values;
    toml::table table;
    try {
        table = toml::parse_file(path.string());
    } catch (const toml::parse_error& error) {
        return Error{ErrorCode::bad_file, text(path.string(), ":", error.source().begin.line, ": ",
                                               error.description())};
    }

    for (const auto& [key, node] : table) {
        std::string name(key.str());
        std::replace(name.begin(), name.end(), '_', '-');
        const Setting* setting = find_setting(name);
        if (!setting)
            return Error{ErrorCode::bad_field,
                         text(path.string(), ":", node.source().begin.line, ": unknown key \"",
                              key.str(), "\"; --print-config lists them")};

        std::vector<std::string>& into = values[name];
        const auto add = [&, &key = key](const toml::node& one) -> Status {
            auto value = file_scalar(one);
            if (!value.ok())
                return Error{ErrorCode::bad_field,
                             text(path.string(), ":", one.source().begin.line, ": ", key.str(),
                                  ": ", value.error().message)};
            into.push_back(*std::move(value));
            return {};
        };

        if (const auto* array = node.as_array(); array && setting->kind == SettingKind::list) {
            for (const toml::node& one : *array) MOEX_TRY(add(one));
        } else {
            MOEX_TRY(add(node));
        }
    }
    return values;
}

std::string upper_snake(std::string_view name) {
    std::string out;
    for (const char c : name)
        out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return out;
}

std::string toml_text(std::string_view value) {
    std::string out = "\"";
    for (const char c : value) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') out += '\\';
        if (code >= 0x20 && code != 0x7f) {
            out += c;
            continue;
        }

        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(code));
        out += escape;
    }
    return out + '"';
}

}  // namespace

std::string flag_name(const Setting& setting) { return text("--", setting.name); }

std::string environment_name(const Setting& setting) { return "MOEX_" + upper_snake(setting.name); }

std::string file_key(const Setting& setting) {
    std::string key(setting.name);
    std::replace(key.begin(), key.end(), '-', '_');
    return key;
}

const char* setting_group_title(SettingGroup group) {
    switch (group) {
        case SettingGroup::address: return "Address and keys";
        case SettingGroup::model: return "Model and memory";
        case SettingGroup::contributors: return "Contributors";
        case SettingGroup::logs: return "Logs";
    }
    return "?";
}

const char* setting_source_name(SettingSource source) {
    switch (source) {
        case SettingSource::default_value: return "default";
        case SettingSource::file: return "file";
        case SettingSource::environment: return "environment";
        case SettingSource::flag: return "flag";
    }
    return "?";
}

const Settings::Value& Settings::value(std::string_view name) const {
    const auto found = values_.find(name);
    MOEX_CHECK(found != values_.end(),
               moex::text("setting ", name, " is not in the table or not of this command"));
    return found->second;
}

const std::string& Settings::text(std::string_view name) const {
    return value(name).values.front();
}

std::uint64_t Settings::number(std::string_view name) const {
    return *parse_whole<std::uint64_t>(text(name));
}

double Settings::real(std::string_view name) const { return *parse_whole<double>(text(name)); }

bool Settings::on(std::string_view name) const { return *parse_switch(text(name)); }

const std::vector<std::string>& Settings::list(std::string_view name) const {
    return value(name).values;
}

SettingSource Settings::source(std::string_view name) const { return value(name).source; }

void Settings::take(std::string_view name, const Settings& from) {
    values_.insert_or_assign(std::string(name), from.value(name));
}

bool Settings::equal(std::string_view name, const Settings& other) const {
    return value(name).values == other.value(name).values;
}

std::string Settings::shown(const Setting& setting) const {
    const std::vector<std::string>& values = value(setting.name).values;
    if (setting.kind == SettingKind::secret) return values.front().empty() ? "not set" : "set";
    if (setting.kind == SettingKind::flag || setting.kind == SettingKind::on_off)
        return on(setting.name) ? "on" : "off";

    std::string all;
    for (const std::string& one : values) all += (all.empty() ? "" : ", ") + one;
    return all;
}

std::string Settings::print(unsigned command) const {
    std::string out;
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command) || setting.is_hidden()) continue;

        const Value& held = value(setting.name);
        std::string shown;
        if (setting.kind == SettingKind::list) {
            for (const std::string& one : held.values)
                shown.append(shown.empty() ? "" : ", ").append(toml_text(one));
            shown = "[" + shown + "]";
        } else if (setting.kind == SettingKind::secret) {
            // Do not print the text of secret keys.
            out += moex::text("# ", environment_name(setting),
                              held.values.front().empty() ? " is not set\n" : " is set\n");
            continue;
        } else if (setting.kind == SettingKind::number) {
            // Format the number again, because TOML refuses leading zeros, which a setting may
            // have.
            shown = moex::text(number(setting.name));
        } else if (setting.kind == SettingKind::real) {
            shown = held.values.front();
        } else if (setting.kind == SettingKind::flag || setting.kind == SettingKind::on_off) {
            shown = on(setting.name) ? "true" : "false";
        } else {
            shown = toml_text(held.values.front());
        }

        std::string line = moex::text(file_key(setting), " = ", shown);
        line.resize(std::max<std::size_t>(line.size() + 1, 44), ' ');
        out += moex::text(line, "# ", setting_source_name(held.source), "\n");
    }
    return out;
}

Result<Settings> resolve_settings(
    unsigned command, const std::map<std::string, std::vector<std::string>>& flags,
    const std::function<std::optional<std::string>(const std::string&)>& environment,
    const std::optional<std::filesystem::path>& file) {
    std::map<std::string, std::vector<std::string>> from_file;
    if (file) {
        auto read = read_file(*file);
        if (!read.ok()) return read.error();
        from_file = *std::move(read);
    }

    Settings settings;
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command)) continue;

        const std::string name(setting.name);
        Settings::Value held;
        std::string where;
        if (const auto given = flags.find(name);
            given != flags.end() && setting.kind != SettingKind::secret) {
            held = {given->second, SettingSource::flag};
            where = flag_name(setting);
        } else if (const auto value = environment(environment_name(setting));
                   value && !value->empty()) {
            held = {setting.kind == SettingKind::list ? split_list(*value) : std::vector{*value},
                    SettingSource::environment};
            where = environment_name(setting);
        } else if (const auto found = from_file.find(name); found != from_file.end()) {
            held = {found->second, SettingSource::file};
            where = text(file->string(), ": ", file_key(setting));
        } else {
            held.values = setting.kind == SettingKind::list
                              ? split_list(setting.default_value)
                              : std::vector{std::string(setting.default_value)};
        }

        if (setting.kind != SettingKind::list && held.values.size() > 1)
            held.values = {held.values.back()};
        if (held.source != SettingSource::default_value)
            for (const std::string& one : held.values)
                if (const Status ok = check_value(setting, one); !ok.ok())
                    return Error{ErrorCode::invalid_argument,
                                 text(where, ": ", ok.error().message)};
        settings.values_.emplace(name, std::move(held));
    }
    return settings;
}

std::optional<std::filesystem::path> default_config_file() {
    std::filesystem::path folder;
    if (const char* config = std::getenv("XDG_CONFIG_HOME"); config && *config)
        folder = config;
    else if (const char* home = std::getenv("HOME"); home && *home)
        folder = std::filesystem::path(home) / ".config";
    else
        return std::nullopt;

    std::error_code failure;
    const std::filesystem::path path = folder / "moex" / "config.toml";
    if (!std::filesystem::is_regular_file(path, failure)) return std::nullopt;
    return path;
}

Result<ListenAddress> parse_listen(std::string_view listen) {
    const Error wrong{
        ErrorCode::invalid_argument,
        text("wanted ADDR:PORT like 127.0.0.1:8080 or [::1]:8080, found \"", listen, "\"")};
    const std::size_t colon = listen.rfind(':');
    if (colon == std::string_view::npos) return wrong;

    std::string_view address = listen.substr(0, colon);
    const auto port = parse_whole<std::uint16_t>(listen.substr(colon + 1));
    if (!port) return wrong;
    if (address.starts_with('[') && address.ends_with(']')) {
        address = address.substr(1, address.size() - 2);
        if (address.empty()) return wrong;
    } else if (address.find(':') != std::string_view::npos) {
        return wrong;  // an IPv6 address needs brackets
    }

    ListenAddress parsed{.address = std::string(address), .port = *port};
    if (parsed.address.empty() || parsed.address == "*") parsed.address = "0.0.0.0";
    if (parsed.address == "localhost") parsed.address = "127.0.0.1";
    return parsed;
}

}  // namespace moex
