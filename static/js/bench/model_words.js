// Texts of the bench page about the rows of a whole model, and the rows in the format of decoder_bench. The module is
// pure: it uses neither the page nor the hub.

import { isPhone, memoryGb } from "../device_kind.js";
import { say } from "../words/bench.js";

// The models, in the order of their size. The sizes in `words` are those of the weights; the other buffers of a model
// take a few hundred megabytes.
export const models = [
  { shape: "demo", weights: "int4", words: () => say("demo_model") },
  { shape: "smollm-135m", weights: "int4", words: () => "SmolLM 135M, INT4, 0.1 GB" },
  { shape: "qwen2-0.5b", weights: "int4", words: () => "Qwen2 0.5B, INT4, 0.3 GB" },
  { shape: "tinyllama-1.1b", weights: "int4", words: () => "TinyLlama 1.1B, INT4, 0.8 GB" },
  { shape: "qwen2-1.5b", weights: "int4", words: () => "Qwen2 1.5B, INT4, 1.0 GB" },
  { shape: "llama3-8b", weights: "int4", words: () => "Llama 3 8B, INT4, 5 GB" },
  { shape: "qwen3-30b-a3b", weights: "mixed", words: () => `Qwen3 30B-A3B, ${say("int4_experts")}, 18 GB` },
];

// Returns the shape of the model that the page offers first on this device.
export function firstShape(seen = globalThis.navigator) {
  if (isPhone(seen)) return "smollm-135m";
  return (memoryGb(seen) ?? 8) < 8 ? "qwen2-0.5b" : "qwen2-1.5b";
}

const conditions = { prefill: "prefill", none: "plain", reuse: "reuse", pipeline: "pipeline", both: "both" };
export function rowWords({ what, fetch, keep_alive }) {
  const [, of_prompt, kernel] = /^(prompt )?kernel (.*)$/.exec(what) ?? [];
  const reading = what === "both" && fetch > 1 ? say("a_reading", fetch) : "";
  const condition = conditions[what] ? say(conditions[what]) : what;
  if (kernel) return of_prompt ? `${kernel} (${say("prefill")})` : kernel;
  return `${condition}${reading}${keep_alive === false ? say("no_keep_alive") : ""}`;
}

// The time of a row per token. A kernel's time is that of a step: of one token, or of a prompt's first ones.
export const msOfToken = ({ ms_token, exec_ms, tokens }) => ms_token || exec_ms / (tokens || 1);

export const ms = (value) => (value > 0 ? `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms` : "");

export const titleOf = ({ shape, weights }) => {
  const known = models.find((one) => one.shape === shape);
  return `${known?.words().split(",")[0] ?? shape}, ${weights}`;
};

// Parses entries like "qwen2-1.5b:int4:f16": shape, weights, format of the KV cache; the last two are optional.
export function askedModels(parameters) {
  const number = (name) => Number(parameters.get(name)) || undefined;
  const fetch = parameters.get("fetch")?.split(",").map(Number).filter((one) => one > 0);
  return (parameters.get("models") ?? "").split(",").filter(Boolean).map((one) => {
    const [shape, weights, kv] = one.split(":");
    return {
      shape, weights, kv, fetch, tokens: number("tokens"), turns: number("turns"),
      ablation: parameters.get("ablation") !== "off", kernels: parameters.get("kernels") === "on",
      keep_alive: parameters.get("keep_alive") !== "off",
    };
  });
}

const columns = ["what", "shape", "weights", "fetch", "tokens", "ms_token", "tok_s", "ms_least", "ms_most", "prep_ms",
  "issue_ms", "exec_ms", "fetch_ms", "model_ms", "utilisation", "dispatches", "created", "mb", "gb_s",
  "keep_alive"];
const digits = { ms_token: 3, tok_s: 1, ms_least: 3, ms_most: 3, prep_ms: 3, issue_ms: 3, exec_ms: 4, fetch_ms: 3,
  model_ms: 3, utilisation: 2, mb: 1, gb_s: 0 };
export function modelCsvOf(rows) {
  const lines = rows.map((row) => {
    const tok_s = row.ms_token > 0 ? 1000 / row.ms_token : 0;
    const whole = { ...row, tok_s, keep_alive: row.keep_alive === false ? "off" : "on" };
    return columns.map((name) => {
      const value = whole[name];
      if (typeof value === "string") return value;
      return value > 0 ? value.toFixed(digits[name] ?? 0) : "";
    }).join(",");
  });
  return `${[columns.join(","), ...lines].join("\n")}\n`;
}
