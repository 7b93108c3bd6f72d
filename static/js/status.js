// The live dashboard: requests /api/status every second and draws the changes.
import uPlot from "../vendor/uPlot.esm.js";
import { getJson } from "./api.js";
import { copyText, element, make } from "./dom.js";
import { listenForForget } from "./forget.js";
import { bytes, compact, ms, number, span, whole } from "./format.js";
import { speakIn } from "./language.js";
import { FleetTable } from "./fleet.js";
import { drawLayer, heatWords, holderKind, tellsTiers, tierKind, tierSentence } from "./status/heat.js";
import { hostWords } from "./status/host.js";
import { sayHistoryAnew, showHistory } from "./status/history.js";
import { onDemandWords, tierWords } from "./status/on_demand.js";
import { layersWords, setAsideWords, spanWords } from "./status/spans.js";
import { LastMinute, splitWords, stepWords } from "./status/split.js";
import { read, write } from "./storage.js";
import { say, table } from "./words/status.js";

const history_s = 120;
const series = { time: [], tokens: [], calls: [] };
let previous = null;
let charts = null;
let key = read("moex-key", "");
let shown = null;      // the last status
const minute = new LastMinute();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- figures

function figuresOf({ engine, calls, coverage, workers }) {
  const active = workers.filter((worker) => worker.state === "active").length;
  const computed = calls.remote + calls.local;
  const share = computed > 0 ? calls.remote / computed : null;
  const is_round = share === 0 || share > 0.9995;
  const tokens = engine.generated_tokens + engine.prompt_tokens;
  return [
    [active, say("serving_figure", active)],
    [`${whole.format(coverage.covered)} / ${whole.format(coverage.units)}`, say("experts_computed")],
    [number.format(series.tokens.at(-1) ?? 0), say("tokens_per_second")],
    [`${engine.running} + ${engine.waiting}`, say("answers_running")],
    [share === null ? "–" : `${(share * 100).toFixed(is_round ? 0 : 1)} %`, say("by_contributors")],
    [checkedShare(calls), say("checked")],
    [ms(calls.p50_ms), calls.p99_ms > 0 ? say("per_call_slow", ms(calls.p99_ms)) : say("per_call")],
    [compact.format(engine.generated_tokens), say("tokens_written")],
    [tokens > 0 ? bytes((calls.bytes_sent + calls.bytes_received) / tokens) : "–", say("wire")],
  ];
}

// Returns the share of the contributors' results that were checked, or came from workers with a good record.
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

const state_kinds = {
  active: "good", reserve: "", loading: "warn", connecting: "warn", draining: "warn", unhealthy: "bad",
};

function gpuOf(worker) {
  const name = [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend || say("unknown_gpu");
  const short = name.length > 28 ? `${name.slice(0, 27)}…` : name;
  return worker.software ? say("software", short) : short;
}

// Translates a name in the hub's reply, such as a state, into the page's language; an unknown name is unchanged.
const word = (kind, name) => say(`${kind}_${name}`) ?? name;

function expertsOf(worker) {
  const held = `${worker.units_ready} / ${worker.units_assigned}`;
  const more = [tierWords(worker), layersWords(worker, shown?.spans)].filter(Boolean);
  if (more.length === 0) return held;
  const cell = make("span", "", held);
  cell.append(...more.map((words) => make("span", "tiers", words)));
  return cell;
}

// The columns of the table of workers; on a phone, a cell shows its column's head before the value.
const columns = [
  ["name", (worker) => worker.nickname || `#${worker.id}`],
  ["state", ({ state }) => make("span", `pill ${state_kinds[state] ?? ""}`, word("state", state))],
  ["gpu", gpuOf],
  ["experts", expertsOf],
  ["answered", (worker) => compact.format(worker.pairs_answered)],
  ["record", (worker) => (worker.trust ? word("trust", worker.trust) : "–")],
  ["call", (worker) => ms(worker.p50_ms)],
  ["slowest", (worker) => ms(worker.p99_ms)],
  ["timeouts", (worker) => String(worker.timeouts)],
  ["up", (worker) => `${bytes(worker.bytes_received)} / ${bytes(worker.bytes_sent)}`],
  ["for", (worker) => span(worker.connected_s)],
];
const first_figure = 3;

function drawHead() {
  const heads = columns.map(([name], i) => make("th", i < first_figure ? "" : "number", say(`column_${name}`)));
  element("worker-head").replaceChildren(...heads);
}

// Keep the table rows between polls, so that the browser lays out only cells with changed texts again.
const rows = new Map();      // worker id -> {row: its table row, told: the text of each cell}
function rowOf(worker) {
  const known = rows.get(worker.id);
  if (known) return known;
  const row = make("tr");
  columns.forEach(([name], i) => {
    row.append(make("td", i < first_figure ? "" : "number", "", { "data-name": say(`column_${name}`) }));
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

// ---- the hubs of the fleet

const fleet_table = new FleetTable(element("fleet"), element("fleet-head"), element("fleet-hubs"));

// ---- the map of holders: it is drawn again when its data, its width or its colours change

let heat_drawn = "";
let heat_shows = "holders";      // or "tiers"
const kind_colours = {
  none: "--heat-none", hub: "--heat-hub", one: "--heat-one", more: "--heat-more",
  slot: "--heat-more", memory: "--heat-one", disk: "--accent", empty: "--surface-2",
};

function drawHeat({ replicas, tiers, options: { local_fallback: hub_computes } }) {
  const has_tiers = tellsTiers(tiers);
  element("heat-choice").hidden = !has_tiers;
  const by_tier = has_tiers && heat_shows === "tiers";
  for (const button of element("heat-choice").children)
    button.setAttribute("aria-pressed", String((button.dataset.heat === "tiers") === by_tier));

  const box = element("heat");
  const label_px = 32;
  const width_px = box.clientWidth - label_px;
  const colours = Object.fromEntries(Object.entries(kind_colours).map(([kind, name]) => [kind, colour(name)]));
  const layers = replicas.map((experts, layer) => ({
    layer, experts,
    kinds: by_tier ? [...tiers[layer]].map((letter) => tierKind(letter, hub_computes))
      : experts.map((one) => holderKind(one, hub_computes)),
  })).filter(({ experts }) => experts.length > 0);
  const wanted = JSON.stringify([layers, by_tier, width_px, colours, window.devicePixelRatio]);
  if (wanted === heat_drawn || width_px <= 0) return;
  heat_drawn = wanted;

  box.replaceChildren(...layers.map(({ experts, kinds, layer }) => {
    const row = make("div", "heat-row");
    const canvas = make("canvas");
    const { columns: across, cell_px, height_px } = drawLayer(canvas, kinds, { width_px, colours });
    canvas.addEventListener("pointermove", (event) => {
      const expert = Math.floor(event.offsetY / height_px) * across + Math.floor(event.offsetX / cell_px);
      if (experts[expert] === undefined) {
        canvas.title = "";
        return;
      }
      const who = holderWords(experts[expert], hub_computes);
      const where = by_tier && experts[expert] > 0 ? `, ${say(`tier_${kinds[expert]}`)}` : "";
      canvas.title = say("place", layer, expert, `${who}${where}`);
    });
    row.append(make("span", "", String(layer)), canvas);
    return row;
  }));

  const words = heatWords(replicas, hub_computes);
  element("heat-words").textContent = by_tier ? `${words} ${tierSentence(tiers)}` : words;
  const seen = new Set(layers.flatMap(({ kinds }) => kinds));
  for (const kind of Object.keys(kind_colours))
    if (kind !== "empty") element(`legend-${kind}`).hidden = !seen.has(kind);
}
for (const button of element("heat-choice").children) {
  button.addEventListener("click", () => {
    heat_shows = button.dataset.heat;
    if (shown) drawHeat(shown);
  });
}
function holderWords(replicas, hub_computes) {
  if (replicas > 0) return say("holder_count", replicas);
  return say(hub_computes ? "hub_itself" : "nobody");
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
        values: (_, ticks) => ticks.map((tick) => (tick === 0 ? say("now") : say("ago", -tick))),
      },
      {
        stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 46,
        values: (_, ticks) => ticks.map((tick) => number.format(tick)),
      },
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
  charts ??= [
    chart("tokens-chart", series.tokens, say("tokens_unit")), chart("calls-chart", series.calls, say("calls_unit"))];
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
  ok: ["good", "serving"], uncovered: ["warn", "needs_contributors"], draining: ["warn", "shutting_down"],
};

function draw(status) {
  const { model } = status;
  shown = status;
  element("model").textContent = model.name;
  const [kind, health] = health_words[status.health] ?? ["bad", ""];
  element("health").className = `pill ${kind}`;
  element("health").textContent = health ? say(health) : status.health;
  element("summary").textContent = say(
    "summary", model.num_moe_layers, model.num_experts, model.top_k, model.context_tokens);

  const missing = status.coverage.units - status.coverage.covered;
  element("notice").className = "notice";
  element("notice").hidden = missing === 0;
  if (missing > 0) element("notice").textContent = say("missing", missing);

  element("host-notice").textContent = hostWords(status.host);
  element("host-notice").hidden = element("host-notice").textContent === "";

  const is_first = element("dashboard").hidden;
  element("dashboard").hidden = false;
  if (is_first) showHistory(() => key);
  drawFigures(status);
  const { split } = status.engine;
  element("step-split").textContent = stepWords(minute.add(performance.now() / 1000, split), split);
  element("step-split").hidden = element("step-split").textContent === "";
  element("split").textContent = splitWords(status.calls.split);
  element("split").hidden = element("split").textContent === "";
  element("on-demand").textContent = [onDemandWords(status), spanWords(status), setAsideWords(status)]
    .filter(Boolean).join(" ");
  element("on-demand").hidden = element("on-demand").textContent === "";
  drawCharts();
  drawWorkers(status.workers);
  fleet_table.draw(status.fleet);
  drawHeat(status);
  drawJoin(status.join_url);
  element("foot").textContent = footWords(status);
}

function drawJoin(join_url) {
  element("join-box").hidden = !join_url;
  if (!join_url) return;
  element("join-url").textContent = join_url;
  element("join-link").href = join_url;
}

// Returns the words for what the hub computes. Layers whose experts it computes alone have no replicas.
function hubWords({ model, replicas, options }) {
  const num_own = model.num_moe_layers - replicas.filter((row) => row.length > 0).length;
  const others = options.local_fallback ? [say("hub_computes_rest")] : [];
  if (num_own > 0) return [say("hub_computes_own", num_own), ...others];
  return others.length > 0 ? others : [say("hub_computes_none")];
}

function footWords(status) {
  const { version, uptime_s, options, coverage, calls } = status;
  const wanted = [
    say("hedging", word("hedge", options.hedge)),
    say("replicas", options.replicas),
    ...(coverage.extra > 0 ? [say("extra_copies", coverage.extra)] : []),
    ...hubWords(status),
    ...(options.deterministic ? [say("deterministic")] : []),
  ];
  const seen = [
    say("hedges", calls.hedges_sent, calls.hedges_won),
    say("timeouts", calls.timeouts),
    say("late", calls.late),
    say("bad", calls.bad_answers),
    ...(calls.rows_checked > 0 ? [say("again", calls.rows_checked)] : []),
    ...(calls.lies > 0 ? [say("lies", calls.lies, calls.bans)] : []),
  ];
  return say("foot", version, span(uptime_s), wanted.join(", "), seen.join("; "));
}

function tell(kind, word, sentence) {
  element("health").className = `pill ${kind}`;
  element("health").textContent = word;
  element("notice").className = `notice ${kind}`;
  element("notice").hidden = !sentence;
  element("notice").textContent = sentence;
}

function refusal(status, message) {
  if (status === 401) return ["warn", say("key_needed"), key ? say("key_unknown") : ""];
  const why = message ?? say("no_reason");
  if (status === 403) return ["warn", say("not_allowed"), say("forbidden", why)];
  if (status === 429) return ["warn", say("too_many"), say("too_often")];
  if (status === 503) return ["warn", say("not_ready"), say("not_ready_why", why)];
  return ["bad", say("error"), say("answered", status, why)];
}

async function refresh() {
  // Catch errors of the request only: an error while drawing is a fault of this page, not of the hub.
  const answer = await getJson("api/status", key).catch(() => null);
  setTimeout(refresh, 1000);
  if (!answer) {
    tell("bad", say("hub_offline"), say("no_answer"));
    previous = null;
    return;
  }
  const { ok, status, body } = answer;
  element("key-form").hidden = status !== 401 && status !== 403;
  if (ok) {
    remember(body);
    draw(body);
  } else tell(...refusal(status, body?.error?.message));
}

// Draws all texts of the page again after the user has chosen another language.
function drawAnew() {
  drawHead();
  for (const { row, told } of rows.values()) {
    told.length = 0;
    columns.forEach(([name], i) => row.children[i].setAttribute("data-name", say(`column_${name}`)));
  }
  if (!shown) return;
  heat_drawn = "";      // forces a new drawing of the map, whose labels are translated
  draw(shown);
  resetCharts();
  sayHistoryAnew();
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key").value.trim();
  write("moex-key", key);
});
element("copy-join").addEventListener("click", () => copyText(element("join-url").textContent, element("copy-join")));
listenForForget();
speakIn(table, element("language"), drawAnew);
drawHead();
refresh();
