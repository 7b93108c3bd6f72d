// The live dashboard: asks /api/status every second and draws what changed.
import uPlot from "/vendor/uPlot.esm.js";
import { getJson } from "/js/api.js";
import { copyText } from "/js/markdown.js";
import { read, write } from "/js/storage.js";

const element = (id) => document.getElementById(id);
const history_s = 120;
const series = { time: [], tokens: [], calls: [] };
let previous = null;
let charts = null;
let key = read("moex-key", "");

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
};
const span = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${number.format(seconds / 3600)} h`);
const ms = (value) => (value > 0 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : "–");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function cell(row, text, className = "") {
  const td = document.createElement("td");
  td.className = className;
  if (text instanceof Node) td.append(text);
  else td.textContent = text;
  row.append(td);
}

function drawFigures(status) {
  const { engine, calls, coverage, workers } = status;
  const active = workers.filter((worker) => worker.state === "active").length;
  const remote = calls.remote + calls.local > 0 ? calls.remote / (calls.remote + calls.local) : null;
  const figures = [
    [active, active === 1 ? "contributor serving" : "contributors serving"],
    [`${coverage.covered} / ${coverage.units}`, "experts with an answerer"],
    [number.format(series.tokens.at(-1) ?? 0), "tokens per second"],
    [`${engine.running} + ${engine.waiting}`, "answers running + waiting"],
    [remote === null ? "–" : `${(remote * 100).toFixed(remote > 0.9995 || remote === 0 ? 0 : 1)} %`, "of calls by contributors"],
    [`${ms(calls.p50_ms)} / ${ms(calls.p99_ms)}`, "call p50 / p99"],
    [compact.format(engine.generated_tokens), "tokens written"],
    [engine.generated_tokens + engine.prompt_tokens > 0 ? bytes((calls.bytes_sent + calls.bytes_received) / (engine.generated_tokens + engine.prompt_tokens)) : "–", "on the wire per token"],
  ];
  element("figures").replaceChildren(...figures.map(([value, label]) => {
    const card = document.createElement("div");
    card.className = "card";
    const top = document.createElement("div");
    top.className = "figure";
    top.textContent = value;
    const bottom = document.createElement("div");
    bottom.className = "label";
    bottom.textContent = label;
    card.append(top, bottom);
    return card;
  }));
}

const stateClass = { active: "good", loading: "warn", connecting: "warn", draining: "warn", unhealthy: "bad" };
function drawWorkers(workers) {
  element("no-workers").hidden = workers.length > 0;
  element("workers").replaceChildren(...workers.map((worker) => {
    const row = document.createElement("tr");
    cell(row, worker.nickname || `#${worker.id}`);
    const pill = document.createElement("span");
    pill.className = `pill ${stateClass[worker.state] ?? ""}`;
    pill.textContent = worker.state;
    cell(row, pill);
    const gpu = [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend || "unknown";
    cell(row, `${gpu.length > 42 ? `${gpu.slice(0, 41)}…` : gpu}${worker.software ? " (software)" : ""}`);
    cell(row, `${worker.units_ready} / ${worker.units_assigned}`, "number");
    cell(row, compact.format(worker.pairs_answered), "number");
    cell(row, ms(worker.p50_ms), "number");
    cell(row, ms(worker.p99_ms), "number");
    cell(row, String(worker.timeouts), "number");
    cell(row, `${bytes(worker.bytes_received)} / ${bytes(worker.bytes_sent)}`, "number");
    cell(row, span(worker.connected_s), "number");
    return row;
  }));
}

// One canvas per layer, one pixel per expert.
function drawHeat(replicas) {
  const colours = [colour("--bad"), colour("--warn"), colour("--good")];
  const rows = [];
  replicas.forEach((experts, layer) => {
    if (experts.length === 0) return;
    const row = document.createElement("div");
    row.className = "heat-row";
    const label = document.createElement("span");
    label.textContent = layer;
    const canvas = document.createElement("canvas");
    canvas.width = experts.length;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    experts.forEach((count, expert) => {
      context.fillStyle = colours[Math.min(count, 2)];
      context.fillRect(expert, 0, 1, 1);
    });
    canvas.title = `layer ${layer}: ${experts.filter((count) => count === 0).length} of ${experts.length} experts have no contributor`;
    row.append(label, canvas);
    rows.push(row);
  });
  element("heat").replaceChildren(...rows);
}

function chart(id, values, label) {
  const target = element(id);
  return new uPlot({
    width: Math.max(200, target.clientWidth), height: 180, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.15)] } },
    axes: [
      { stroke: colour("--muted"), grid: { show: false }, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "now" : `${tick} s`)) },
      { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, size: 52 },
    ],
    series: [{}, { label, stroke: colour("--accent"), width: 2, fill: colour("--accent-soft"), points: { show: false } }],
  }, [series.time, values], target);
}
function drawCharts() {
  const now = series.time.at(-1) ?? 0;
  const ages = series.time.map((time) => Math.round(time - now));
  if (!charts) charts = [chart("tokens-chart", series.tokens, "tokens/s"), chart("calls-chart", series.calls, "calls/s")];
  charts[0].setData([ages, series.tokens]);
  charts[1].setData([ages, series.calls]);
}
function resetCharts() {
  charts?.forEach((one) => one.destroy());
  charts = null;
  drawCharts();
}
addEventListener("resize", () => { if (charts) resetCharts(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (charts) resetCharts(); });

function remember(status) {
  const time = performance.now() / 1000;
  if (previous) {
    const elapsed = time - previous.time;
    const rate = (now, before) => Math.max(0, (now - before) / elapsed);
    series.time.push(time);
    series.tokens.push(rate(status.engine.generated_tokens, previous.tokens));
    series.calls.push(rate(status.calls.calls, previous.calls));
    while (series.time[0] < time - history_s) for (const list of Object.values(series)) list.shift();
  }
  previous = { time, tokens: status.engine.generated_tokens, calls: status.calls.calls };
}

const healthText = { ok: ["good", "serving"], uncovered: ["warn", "needs contributors"], draining: ["warn", "shutting down"] };
function draw(status) {
  const { model, options } = status;
  element("model").textContent = model.name;
  const [kind, word] = healthText[status.health] ?? ["bad", status.health];
  element("health").className = `pill ${kind}`;
  element("health").textContent = word;
  element("summary").textContent = `${model.num_moe_layers} MoE layers, ${model.num_experts} experts each, ${model.top_k} per token; context ${model.context_tokens} tokens`;
  const missing = status.coverage.units - status.coverage.covered;
  element("notice").hidden = missing === 0;
  if (missing > 0) element("notice").textContent = `${missing} experts have no answerer. The hub needs more contributors, or more memory lent by those who are here.`;
  remember(status);
  element("dashboard").hidden = false;
  drawFigures(status);
  drawCharts();
  drawWorkers(status.workers);
  drawHeat(status.replicas);
  element("join-box").hidden = !status.join_url;
  if (status.join_url) {
    element("join-url").textContent = status.join_url;
    element("join-link").href = status.join_url;
  }
  element("foot").textContent = `MoEx ${status.version}, up ${span(status.uptime_s)}. Hedging ${options.hedge}, ${options.replicas} replicas, local fallback ${options.local_fallback ? "on" : "off"}${options.deterministic ? ", deterministic" : ""}. `
    + `${status.calls.hedges_sent} hedges sent, ${status.calls.hedges_won} won; ${status.calls.timeouts} timeouts; ${status.calls.late} late answers; ${status.calls.bad_answers} bad answers.`;
}

function say(kind, word, sentence) {
  element("health").className = `pill ${kind}`;
  element("health").textContent = word;
  element("notice").hidden = !sentence;
  element("notice").textContent = sentence;
}
function refusal(status, message) {
  if (status === 401) return ["warn", "key needed", key ? "The hub does not know this key." : ""];
  if (status === 403) return ["warn", "not allowed", `The hub does not show its status here: ${message ?? "forbidden"}.`];
  if (status === 429) return ["warn", "too many requests", "The hub gets too many requests from this address. This page goes on by itself."];
  if (status === 503) return ["warn", "not ready", `The hub is not ready: ${message ?? "loading"}. This page goes on by itself.`];
  return ["bad", "error", `The hub answered ${status}: ${message ?? "no reason given"}.`];
}

async function refresh() {
  try {
    const { ok, status, body } = await getJson("/api/status", key);
    element("key-form").hidden = status !== 401 && status !== 403;
    if (ok) draw(body);
    else say(...refusal(status, body?.error?.message));
  } catch {
    say("bad", "hub offline", "The hub does not answer. This page goes on by itself when it is back.");
    previous = null;
  }
  setTimeout(refresh, 1000);
}
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key").value.trim();
  write("moex-key", key);
});
element("copy-join").addEventListener("click", (event) => copyText(element("join-url").textContent, event.currentTarget));
refresh();
