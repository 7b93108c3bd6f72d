// moex-hub clients: prints the settings with which other programs use a running hub.
#include "hub/commands/chat/chat_source.h"
#include "hub/commands/command.h"
#include "hub/commands/output.h"

namespace moex {
namespace {

struct HubFacts {
    std::string url, model;  // `url` has no path
};

struct Client {
    std::string_view name, title;
    std::string (*settings)(const HubFacts& hub);
};

std::string of_claude_code(const HubFacts& hub) {
    return text("export ANTHROPIC_BASE_URL=", hub.url, "\nexport ANTHROPIC_AUTH_TOKEN=KEY\n",
                "export ANTHROPIC_MODEL=", hub.model, " ANTHROPIC_DEFAULT_HAIKU_MODEL=", hub.model,
                "\nexport CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1\nclaude\n");
}

std::string of_codex(const HubFacts& hub) {
    return text("# ~/.codex/config.toml\nmodel = \"", hub.model,
                "\"\nmodel_provider = \"moex\"\n[model_providers.moex]\nname = \"MoEx\"\n",
                "base_url = \"", hub.url,
                "/v1\"\nwire_api = \"responses\"\nenv_key = \"MOEX_KEY\"\n\n",
                "export MOEX_KEY=KEY\ncodex\n");
}

std::string of_qwen_code(const HubFacts& hub) {
    return text("export OPENAI_BASE_URL=", hub.url, "/v1\nexport OPENAI_API_KEY=KEY\n",
                "export OPENAI_MODEL=", hub.model, "\nqwen --auth-type openai\n");
}

std::string of_opencode(const HubFacts& hub) {
    return text(R"(# opencode.json
{"$schema": "https://opencode.ai/config.json",
 "model": "moex/)",
                hub.model, R"(",
 "provider": {"moex": {"npm": "@ai-sdk/openai-compatible", "name": "MoEx",
   "options": {"baseURL": ")",
                hub.url, R"(/v1", "apiKey": "KEY"},
   "models": {")",
                hub.model, R"(": {}}}}}
)");
}

std::string of_continue(const HubFacts& hub) {
    return text("# ~/.continue/config.yaml\nname: MoEx\nversion: 0.0.1\nschema: v1\nmodels:\n",
                "  - name: ", hub.model, "\n    provider: openai\n    model: ", hub.model,
                "\n    apiBase: ", hub.url, "/v1\n    apiKey: KEY\n",
                "    roles: [chat, edit, apply]\n");
}

std::string of_open_webui(const HubFacts& hub) {
    return text("export OPENAI_API_BASE_URL=", hub.url,
                "/v1\nexport OPENAI_API_KEY=KEY ENABLE_OLLAMA_API=false\nopen-webui serve\n");
}

constexpr Client clients[] = {
    {"claude-code", "Claude Code", of_claude_code}, {"codex", "Codex", of_codex},
    {"qwen-code", "Qwen Code", of_qwen_code},       {"opencode", "OpenCode", of_opencode},
    {"continue", "Continue", of_continue},          {"open-webui", "Open WebUI", of_open_webui},
};

}  // namespace

int run_clients(const Invocation& invocation) {
    const std::string* const wanted = invocation.argument("PROGRAM");
    const std::string* const given = invocation.argument("--url");
    HubFacts hub{.url = given ? *given : "http://127.0.0.1:8080", .model = {}};
    while (hub.url.ends_with('/')) hub.url.pop_back();
    if (hub.url.ends_with("/v1")) hub.url.resize(hub.url.size() - 3);

    const auto source = open_hub_chat(invocation, hub.url);
    if (!source.ok()) return fail(text(source.error().message, "; is the hub running?"));
    hub.model = (*source)->model_name();

    std::string out;
    for (const Client& one : clients) {
        if (wanted && one.name != *wanted) continue;
        out += text("# ", one.title, "\n", one.settings(hub), "\n");
    }
    if (out.empty()) {
        fail(text("no settings are known for \"", *wanted,
                  "\"; moex-hub clients --help lists them"));
        return exit_wrong_arguments;
    }
    if (!wanted)
        out +=
            "# KEY: a key of the hub (moex-hub key add NAME), or any word where it asks for none\n";
    (void)print_now(out);
    return exit_stopped;
}

}  // namespace moex
