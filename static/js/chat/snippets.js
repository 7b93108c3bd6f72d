// Example code for the API, ready to paste. `root`: the hub's address, ending with a slash. The module
// is pure: it uses neither the page nor the hub.
import { say } from "../words/chat.js";

export const snippets = {
  curl: ({ root, model, needs_key }) => `curl ${root}v1/chat/completions \\
  -H 'Content-Type: application/json' \\${needs_key ? "\n  -H 'Authorization: Bearer YOUR_KEY' \\" : ""}
  -d '{"model": "${model}", "messages": [
    {"role": "user", "content": "${say("snippet_question")}"}]}'`,

  javascript: ({ root, model, needs_key }) => `import OpenAI from "openai";
const client = new OpenAI({
  baseURL: "${root}v1",
  apiKey: "${needs_key ? "YOUR_KEY" : "none"}",
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
    api_key="${needs_key ? "YOUR_KEY" : "none"}",
)
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "${say("snippet_question")}"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")`,
};
