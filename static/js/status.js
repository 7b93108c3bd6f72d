// The live dashboard: asks /api/status every second and draws what changed.
import uPlot from "/vendor/uPlot.esm.js";
import { getJson } from "/js/api.js";
import { copyText, element, make } from "/js/dom.js";
import { listenForForget } from "/js/forget.js";
import { bytes, compact, count, ms, number, span, whole } from "/js/format.js";
import { drawLayer, heatWords, holderKind } from "/js/status/heat.js";
import { showHistory } from "/js/status/history.js";
import { splitWords } from "/js/status/split.js";
import { read, write } from "/js/storage.js";

const history_s = 120;
const series = { time: [], tokens: [], calls: [] };
let previous = null;
let charts = null;
let key = read("moex-key", "");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- figures

function figuresOf({ engine, calls, coverage, workers }) {
  const active = workers.filter((worker) => worker.state === "active").length;
  const computed = calls.remote + calls.local;
  const share = computed > 0 ? calls.remote / computed : null;
  const is_round = share === 0 || share > 0.9995;
  const tokens = engine.generated_tokens + engine.prompt_tokens;
  return [
    [active, active === 1 ? "contributor serving" : "contributors serving"],
    [`${whole.format(coverage.covered)} / ${whole.format(coverage.units)}`, "experts that are computed"],
    [number.format(series.tokens.at(-1) ?? 0), "tokens per second"],
    [`${engine.running} + ${engine.waiting}`, "answers running + waiting"],
    [share === null ? "–" : `${(share * 100).toFixed(is_round ? 0 : 1)} %`, "of calls by contributors"],
    [checkedShare(calls), "of that computed again or by record"],
    [ms(calls.p50_ms), calls.p99_ms > 0 ? `per call, 1 in 100 over ${ms(calls.p99_ms)}` : "per call"],
    [compact.format(engine.generated_tokens), "tokens written"],
    [tokens > 0 ? bytes((calls.bytes_sent + calls.bytes_received) / tokens) : "–", "on the wire per token"],
  ];
}

// Of what contributors computed, how much was checked as far as it had to be.
function checkedShare({ pairs_verified = 0, pairs_proven = 0, pairs_unchecked = 0 }) {
  const all = pairs_verified + pairs_proven + pairs_unchecked;
  return all > 0 ? `${Math.floor((100 * (pairs_verified + pairs_proven)) / all)} %` : "–";
}

function drawFigures(status) {
  const figures = figuresOf(status);
  const box = element("figures");
  while (box.children.length < figures.length) {
    const card = make("div", "card");
    card.append(make("div", "figure"), make("div", "label"));
    box.append(card);
  }
  figures.forEach(([value, label], i) => {
    const [top, bottom] = box.children[i].children;
    top.textContent = value;
    bottom.textContent = label;
  });
}

// ---- contributors

const state_kinds = { active: "good", loading: "warn", connecting: "warn", draining: "warn", unhealthy: "bad" };

function gpuOf(worker) {
  const name = [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend || "unknown";
  const short = name.length > 28 ? `${name.slice(0, 27)}…` : name;
  return worker.software ? `${short} (software)` : short;
}

// What each column says of a worker: on a phone its head stands before it.
const columns = [
  ["Name", (worker) => worker.nickname || `#${worker.id}`],
  ["State", (worker) => make("span", `pill ${state_kinds[worker.state] ?? ""}`, worker.state)],
  ["GPU", gpuOf],
  ["Experts", (worker) => `${worker.units_ready} / ${worker.units_assigned}`],
  ["Answered", (worker) => compact.format(worker.pairs_answered)],
  ["Record", (worker) => worker.trust ?? "–"],
  ["Per call", (worker) => ms(worker.p50_ms)],
  ["Slowest 1 %", (worker) => ms(worker.p99_ms)],
  ["Timeouts", (worker) => String(worker.timeouts)],
  ["Up / down", (worker) => `${bytes(worker.bytes_received)} / ${bytes(worker.bytes_sent)}`],
  ["For", (worker) => span(worker.connected_s)],
];
const first_figure = 3;

function drawHead() {
  const heads = columns.map(([name], i) => make("th", i < first_figure ? "" : "number", name));
  element("worker-head").replaceChildren(...heads);
}

// Rows stay from look to look: of hundreds only the cells whose words changed are laid out again.
const rows = new Map();      // worker id -> {row, told: what each cell says}
function rowOf(worker) {
  const known = rows.get(worker.id);
  if (known) return known;
  const row = make("tr");
  columns.forEach(([name], i) => {
    row.append(make("td", i < first_figure ? "" : "number", "", { "data-name": name }));
  });
  const made = { row, told: [] };
  rows.set(worker.id, made);
  return made;
}

function drawWorker(worker) {
  const { row, told } = rowOf(worker);
  columns.forEach(([, tell], i) => {
    const value = tell(worker);
    const words = typeof value === "string" ? value : value.outerHTML;
    if (told[i] === words) return;
    told[i] = words;
    row.children[i].replaceChildren(value);
  });
  return row;
}

function drawWorkers(workers) {
  element("no-workers").hidden = workers.length > 0;
  element("worker-table").hidden = workers.length === 0;
  const here = new Set(workers.map(({ id }) => id));
  for (const [id, { row }] of rows) {
    if (here.has(id)) continue;
    row.remove();
    rows.delete(id);
  }
  const body = element("workers");
  workers.map(drawWorker).forEach((row, i) => {
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
  });
}

// ---- who holds which expert: drawn again when it, the width or the colours changed

let heat_drawn = "";
function drawHeat(replicas, hub_computes) {
  const box = element("heat");
  const label_px = 32;
  const width_px = box.clientWidth - label_px;
  const kinds = ["none", "hub", "one", "more"];
  const colours = Object.fromEntries(kinds.map((kind) => [kind, colour(`--heat-${kind}`)]));
  const wanted = JSON.stringify([replicas, hub_computes, width_px, colours, window.devicePixelRatio]);
  if (wanted === heat_drawn || width_px <= 0) return;
  heat_drawn = wanted;

  const layers = replicas.map((experts, layer) => ({ experts, layer })).filter(({ experts }) => experts.length > 0);
  box.replaceChildren(...layers.map(({ experts, layer }) => {
    const row = make("div", "heat-row");
    const canvas = make("canvas");
    const { columns: across, cell_px, height_px } = drawLayer(canvas, experts, { width_px, hub_computes, colours });
    canvas.addEventListener("pointermove", (event) => {
      const expert = Math.floor(event.offsetY / height_px) * across + Math.floor(event.offsetX / cell_px);
      const who = holderWords(experts[expert], hub_computes);
      canvas.title = experts[expert] === undefined ? "" : `layer ${layer}, expert ${expert}: ${who}`;
    });
    row.append(make("span", "", String(layer)), canvas);
    return row;
  }));

  element("heat-words").textContent = heatWords(replicas, hub_computes);
  const seen = new Set(replicas.flat().map((one) => holderKind(one, hub_computes)));
  for (const kind of kinds) element(`legend-${kind}`).hidden = !seen.has(kind);
}
function holderWords(replicas, hub_computes) {
  if (replicas > 0) return count(replicas, "contributor");
  return hub_computes ? "the hub itself" : "nobody";
}

// ---- charts

function chart(id, values, label) {
  const target = element(id);
  return new uPlot({
    width: Math.max(200, target.clientWidth), height: 150, legend: { show: false }, cursor: { show: false },
    scales: {
      x: { time: false, range: [-history_s, 0] },
      y: { range: (_, low, high) => [0, Math.max(1, high * 1.15)] },
    },
    axes: [
      {
        stroke: colour("--muted"), grid: { show: false }, ticks: { show: false }, size: 30,
        splits: [-90, -60, -30, 0],
        values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "now" : `${-tick} s ago`)),
      },
      { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 46 },
    ],
    series: [
      {},
      { label, stroke: colour("--accent"), width: 2, fill: colour("--accent-soft"), points: { show: false } },
    ],
  }, [series.time, values], target);
}
function drawCharts() {
  const now = series.time.at(-1) ?? 0;
  const ages = series.time.map((time) => time - now);
  charts ??= [chart("tokens-chart", series.tokens, "tokens/s"), chart("calls-chart", series.calls, "calls/s")];
  charts[0].setData([ages, series.tokens]);
  charts[1].setData([ages, series.calls]);
}
function resetCharts() {
  if (!charts) return;
  charts.forEach((one) => one.destroy());
  charts = null;
  drawCharts();
}
addEventListener("resize", resetCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resetCharts);

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

// ---- the page

const health_words = {
  ok: ["good", "serving"], uncovered: ["warn", "needs contributors"], draining: ["warn", "shutting down"],
};

function draw(status) {
  const { model, options } = status;
  element("model").textContent = model.name;
  const [kind, word] = health_words[status.health] ?? ["bad", status.health];
  element("health").className = `pill ${kind}`;
  element("health").textContent = word;
  element("summary").textContent = `${count(model.num_moe_layers, "layer")} of ${count(model.num_experts, "expert")}, `
    + `${model.top_k} asked per token; a context of ${count(model.context_tokens, "token")}`;

  const missing = status.coverage.units - status.coverage.covered;
  element("notice").className = "notice";
  element("notice").hidden = missing === 0;
  if (missing > 0) {
    element("notice").textContent = `${count(missing, "expert has", "experts have")} nobody to compute them. `
      + "The hub needs more contributors, or more memory lent by those who are here.";
  }

  remember(status);
  const is_first = element("dashboard").hidden;
  element("dashboard").hidden = false;
  if (is_first) showHistory(() => key);
  drawFigures(status);
  element("split").textContent = splitWords(status.calls.split);
  element("split").hidden = element("split").textContent === "";
  drawCharts();
  drawWorkers(status.workers);
  drawHeat(status.replicas, options.local_fallback);
  drawJoin(status.join_url);
  element("foot").textContent = footWords(status);
}

function drawJoin(join_url) {
  element("join-box").hidden = !join_url;
  if (!join_url) return;
  element("join-url").textContent = join_url;
  element("join-link").href = join_url;
}

function footWords({ version, uptime_s, options, calls }) {
  const wanted = [
    `Hedging ${options.hedge}`,
    `${count(options.replicas, "replica")} wanted`,
    options.local_fallback ? "the hub computes what nobody else does" : "the hub computes no expert itself",
    ...(options.deterministic ? ["deterministic"] : []),
  ];
  const seen = [
    `${count(calls.hedges_sent, "hedge")} sent, ${whole.format(calls.hedges_won)} won`,
    count(calls.timeouts, "timeout"),
    count(calls.late, "late answer"),
    count(calls.bad_answers, "bad answer"),
    ...(calls.rows_checked > 0 ? [`${whole.format(calls.rows_checked)} rows computed again`] : []),
    ...(calls.lies > 0 ? [`${count(calls.lies, "lie")} seen, ${whole.format(calls.bans)} banned`] : []),
  ];
  return `MoEx ${version}, up ${span(uptime_s)}. ${wanted.join(", ")}. ${seen.join("; ")}.`;
}

function say(kind, word, sentence) {
  element("health").className = `pill ${kind}`;
  element("health").textContent = word;
  element("notice").className = `notice ${kind}`;
  element("notice").hidden = !sentence;
  element("notice").textContent = sentence;
}

const by_itself = "This page goes on by itself.";
function refusal(status, message) {
  if (status === 401) return ["warn", "key needed", key ? "The hub does not know this key." : ""];
  if (status === 403) {
    return ["warn", "not allowed", `The hub does not show its status here: ${message ?? "forbidden"}.`];
  }
  if (status === 429) {
    return ["warn", "too many requests", `The hub gets too many requests from this address. ${by_itself}`];
  }
  if (status === 503) return ["warn", "not ready", `The hub is not ready: ${message ?? "loading"}. ${by_itself}`];
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
element("copy-join").addEventListener("click", () => copyText(element("join-url").textContent, element("copy-join")));
listenForForget();
drawHead();
refresh();
