// Example code for the API and the settings of other programs, ready to paste. `root`: the hub's address, ending with
// a slash. The module is pure: it uses neither the page nor the hub.
import { say } from "../words/chat.js";

const keyOf = (needs_key) => needs_key ? "YOUR_KEY" : "none";

export const snippets = {
  curl: ({ root, model, needs_key }) => `curl ${root}v1/chat/completions \\
  -H 'Content-Type: application/json' \\${needs_key ? "\n  -H 'Authorization: Bearer YOUR_KEY' \\" : ""}
  -d '{"model": "${model}", "messages": [
    {"role": "user", "content": "${say("snippet_question")}"}]}'`,

  javascript: ({ root, model, needs_key }) => `import OpenAI from "openai";
const client = new OpenAI({
  baseURL: "${root}v1",
  apiKey: "${keyOf(needs_key)}",
});
const stream = await client.chat.completions.create({
  model: "${model}",
  messages: [{ role: "user", content: "${say("snippet_question")}" }],
  stream: true,
});
for await (const chunk of stream)
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");`,

  python: ({ root, model, needs_key }) => `from openai import OpenAI
client = OpenAI(
    base_url="${root}v1",
    api_key="${keyOf(needs_key)}",
)
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "${say("snippet_question")}"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")`,

  // The settings of other programs are those that `moex-hub clients` prints.
  "claude-code": ({ root, model, needs_key }) => `export ANTHROPIC_BASE_URL=${root.slice(0, -1)}
export ANTHROPIC_AUTH_TOKEN=${keyOf(needs_key)}
export ANTHROPIC_MODEL=${model} ANTHROPIC_DEFAULT_HAIKU_MODEL=${model}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude`,

  codex: ({ root, model, needs_key }) => `# ~/.codex/config.toml
model = "${model}"
model_provider = "moex"
[model_providers.moex]
name = "MoEx"
base_url = "${root}v1"
wire_api = "responses"
env_key = "MOEX_KEY"

export MOEX_KEY=${keyOf(needs_key)}
codex`,

  "qwen-code": ({ root, model, needs_key }) => `export OPENAI_BASE_URL=${root}v1
export OPENAI_API_KEY=${keyOf(needs_key)}
export OPENAI_MODEL=${model}
qwen --auth-type openai`,

  opencode: ({ root, model, needs_key }) => `# opencode.json
{"$schema": "https://opencode.ai/config.json",
 "model": "moex/${model}",
 "provider": {"moex": {"npm": "@ai-sdk/openai-compatible", "name": "MoEx",
   "options": {"baseURL": "${root}v1", "apiKey": "${keyOf(needs_key)}"},
   "models": {"${model}": {}}}}}`,

  continue: ({ root, model, needs_key }) => `# ~/.continue/config.yaml
name: MoEx
version: 0.0.1
schema: v1
models:
  - name: ${model}
    provider: openai
    model: ${model}
    apiBase: ${root}v1
    apiKey: ${keyOf(needs_key)}
    roles: [chat, edit, apply]`,

  "open-webui": ({ root, needs_key }) => `export OPENAI_API_BASE_URL=${root}v1
export OPENAI_API_KEY=${keyOf(needs_key)} ENABLE_OLLAMA_API=false
open-webui serve`,
};
