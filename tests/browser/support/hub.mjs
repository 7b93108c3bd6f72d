// A real hub as a child process, on a free port of the loopback interface, with its own state folder.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const build = process.env.MOEX_BUILD ?? "build";

// Runs a command and resolves to {code, stdout, stderr} when it has ended.
export function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    let stdout = "";
    let stderr = "";
    child.stdout.setEncoding("utf8").on("data", (text) => { stdout += text; });
    child.stderr.setEncoding("utf8").on("data", (text) => { stderr += text; });
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, stdout, stderr }));
  });
}

// Collects the output of a child process until `predicate(output so far)` returns a value. Rejects with the output if
// the child ends first.
function waitForOutput(child, name, predicate) {
  return new Promise((resolve, reject) => {
    const look = () => {
      const found = predicate(child.printed);
      if (found) {
        child.stdout.off("data", look);
        child.stderr.off("data", look);
        resolve(found);
      }
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    child.once("close", (code) => reject(new Error(`${name} ended with ${code}: ${child.printed.slice(-2000)}`)));
    look();
  });
}

function start(command, args, env) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  child.printed = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text) => { child.printed += text; });
  child.ended = new Promise((resolve) => child.once("close", (code, signal) => resolve({ code, signal })));
  return child;
}

async function end(child, signal = "SIGTERM", patience_ms = 60000) {
  if (child.exitCode === null && child.signalCode === null) child.kill(signal);
  const timer = setTimeout(() => child.kill("SIGKILL"), patience_ms);
  const result = await child.ended;
  clearTimeout(timer);
  return result;
}

export class Hub {
  // `args`: further flags of `moex-hub serve`. Most stories want contributors' answers, so workers are always asked
  // unless `args` name --use-workers, and compute no whole layers unless `args` name --spans. With the `state` and
  // `port` of an earlier hub, the new hub replaces it.
  // `program`: another program that serves, with the arguments that come before `serve`.
  static async start(args = [],
    { state = mkdtempSync(join(tmpdir(), "moex-state-")), port = 0, env = {}, program = ["moex-hub"] } = {}) {
    const hub = new Hub();
    hub.state = state;
    hub.args = args;
    const serve = ["serve", "--listen", `127.0.0.1:${port}`, "--state", state, "--test-routes", ...args];
    hub.child = start(join(build, program[0]), [...program.slice(1), ...serve],
      { MOEX_USE_WORKERS: "always", MOEX_SPANS: "off", ...env });
    const ready = await waitForOutput(hub.child, "moex-hub", (text) => /^ready: url=(\S+) join=(\S+)/m.exec(text));
    [, hub.url, hub.join] = ready;
    hub.port = Number(new URL(hub.url).port);
    return hub;
  }
  async status() { return (await fetch(`${this.url}/api/status`)).json(); }
  async test(body) {
    const response = await fetch(`${this.url}/api/test`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`/api/test: ${response.status} ${await response.text()}`);
  }
  // Polls /api/status until `predicate(status)` returns true. Only the time limit of the test ends the wait.
  async until(predicate, what) {
    for (let status; ;) {
      status = await this.status();
      if (predicate(status)) return status;
      if (this.child.exitCode !== null) throw new Error(`the hub ended while waiting for ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  stop(signal) { return end(this.child, signal); }
  // Stops the hub, and starts it again with the same state on the same port.
  async restart() {
    await this.stop();
    return Hub.start(this.args, { state: this.state, port: this.port });
  }
  async remove() {
    await this.stop();
    rmSync(this.state, { recursive: true, force: true });
  }
}

// Resolves to the flags by which a native worker uses Vulkan, even with a software driver. (An old build without
// --backend, as bench/compare.mjs may use, has no other backend.)
let vulkan = null;
function onVulkan() {
  vulkan ??= run(join(build, "moex-worker"), ["--help"])
    .then(({ stdout }) => (stdout.includes("--backend") ? ["--backend", "gpu"] : []));
  return vulkan;
}

export class NativeWorker {
  // `env`: further variables of the worker's environment.
  static async start(hub, args = [], env = {}) {
    const worker = new NativeWorker();
    if (!args.includes("--backend")) args = [...args, ...await onVulkan()];
    const token = new URL(hub.join).hash.slice(1).split("token=")[1];
    const url = hub.url.replace("http", "ws");
    worker.child = start(join(build, "moex-worker"), ["--hub", url, ...args], { MOEX_TOKEN: token, ...env });
    const serves = (text) => /serving units=(\d+) adapter="([^"]*)"/.exec(text);
    const [, units, adapter] = await waitForOutput(worker.child, "moex-worker", serves);
    worker.units = Number(units);
    worker.adapter = adapter;
    return worker;
  }
  stop(signal) { return end(this.child, signal); }
}

// Streams a chat. Resolves to {text, chunks, finish, moex, error}; `onToken(count)` is called for each piece of text.
export async function chat(hub, body, onToken = () => {}) {
  const route = body.prompt ? "completions" : "chat/completions";
  const response = await fetch(`${hub.url}/v1/${route}`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ stream: true, stream_options: { include_usage: true }, ...body }),
  });
  const answer = { text: "", chunks: [], finish: null, moex: null, usage: null, error: null, status: response.status };
  if (!response.ok) {
    answer.error = await response.text();
    return answer;
  }
  let held = "";
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    held += bytes;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const line = held.slice(0, at);
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return answer;
      const chunk = JSON.parse(line.slice(6));
      answer.chunks.push(chunk);
      if (chunk.error) answer.error = chunk.error;
      const choice = chunk.choices?.[0];
      const piece = choice?.delta?.content ?? choice?.text;
      if (piece) {
        answer.text += piece;
        await onToken(answer.chunks.length, answer.text);
      }
      if (choice?.finish_reason) answer.finish = choice.finish_reason;
      if (chunk.moex) answer.moex = chunk.moex;
      if (chunk.usage) answer.usage = chunk.usage;
    }
  }
  answer.error ??= "the stream ended without [DONE]";
  return answer;
}

// Runs `moex-hub generate` for a chat prompt with the local backend, deterministic and greedy. Resolves to its text,
// and the smallest gap between the log-probabilities of the two likeliest tokens.
export async function generateText(prompt, max_tokens, extra = []) {
  const { code, stdout, stderr } = await run(join(build, "moex-hub"),
    ["generate", "--prompt", prompt, "--chat", "--deterministic", "--temperature", "0",
      "--max-tokens", String(max_tokens), "--margins", ...extra]);
  if (code !== 0) throw new Error(`generate: ${stderr}`);
  const margin = /margin_min=([0-9.]+)/.exec(stderr);
  return { text: stdout.replace(/\n$/, ""), margin: margin ? Number(margin[1]) : NaN };
}
