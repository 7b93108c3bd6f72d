// The last hour, day or week: four charts from /api/history, requested again every minute.
import uPlot from "../../vendor/uPlot.esm.js";
import { getJson } from "../api.js";
import { element, make } from "../dom.js";
import { number } from "../format.js";
import { dateLocale } from "../language.js";
import { historySeries, historyWords, lonePoints } from "./series.js";
import { read, write } from "../storage.js";
import { say } from "../words/status.js";

const spans = [["1h", "hour"], ["24h", "day"], ["7d", "week"]];
const refresh_ms = 60000;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The charts: id of the box -> list of lines [key of the series, key of its label, colour, scale].
const charts = {
  "history-tokens": [["tokens", "tokens_unit", "--accent", "y"]],
  "history-first": [["first_token", "first_token_ms", "--accent", "y"]],
  "history-calls": [["p50", "half_within", "--good", "y"], ["p99", "most_within", "--accent", "y"],
    ["p999", "nearly_all_within", "--warn", "y"]],
  "history-workers": [["workers", "line_workers", "--accent", "y"], ["coverage", "line_coverage", "--good", "%"]],
};

// Returns the label of a time, such as "14:05"; for the last week, such as "Sun 22".
function tickWords(time_s) {
  const time = new Date(time_s * 1000);
  if (span !== "7d") return time.toLocaleTimeString(dateLocale(), { hour: "2-digit", minute: "2-digit" });
  return time.toLocaleDateString(dateLocale(), { weekday: "short", day: "numeric" });
}

const sideAxis = (more) => ({
  stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 52,
  values: (_, ticks) => ticks.map((tick) => number.format(tick)), ...more,
});

// A line joins neighbours, so a value without neighbours needs a point of its own, however dense the chart is.
const loneOf = (chart, at, is_shown) => (is_shown ? null : lonePoints(chart.data[at]));

let drawn = [];
let body = null;
let span = read("moex-history", "1h");
let key_of = () => "";
let timer = 0;

function draw() {
  drawn.forEach((one) => one.destroy());
  drawn = [];
  if (!body) return;

  const series = historySeries(body);
  element("history-words").textContent = historyWords(body);
  for (const [id, lines] of Object.entries(charts)) {
    const target = element(id);
    const has_percent = lines.some(([, , , scale]) => scale === "%");
    drawn.push(new uPlot({
      width: Math.max(200, target.clientWidth), height: 140, cursor: { show: false },
      legend: { show: lines.length > 1, live: false, markers: { width: 2 } },
      scales: {
        x: { time: true, range: [series.times[0], series.times.at(-1)] },
        y: { range: (_, low, high) => [0, Math.max(1, (high ?? 0) * 1.15)] },
        "%": { range: [0, 105] },
      },
      axes: [
        {
          stroke: colour("--muted"), grid: { show: false }, ticks: { show: false }, size: 30, space: 70,
          values: (_, ticks) => ticks.map(tickWords),
        },
        sideAxis({ scale: "y" }),
        ...(has_percent ? [sideAxis({
          scale: "%", side: 1, grid: { show: false }, values: (_, ticks) => ticks.map((tick) => `${tick} %`),
        })] : []),
      ],
      series: [{}, ...lines.map(([, label, name, scale]) => ({
        label: say(label), scale, stroke: colour(name), width: 1.5, dash: scale === "%" ? [4, 3] : undefined,
        points: { size: 4, filter: loneOf }, spanGaps: false,
      }))],
    }, [series.times, ...lines.map(([name]) => series[name])], target));
  }
}

async function refresh() {
  clearTimeout(timer);
  const answer = await getJson(`api/history?span=${span}`, key_of()).catch(() => null);
  if (answer?.ok) {
    body = answer.body;
    draw();
  }
  timer = setTimeout(refresh, refresh_ms);
}

function choose(name) {
  span = name;
  write("moex-history", span);
  for (const one of element("history-spans").children)
    one.setAttribute("aria-pressed", String(one.dataset.span === span));
  refresh();
}

// Draws the texts of the charts again after the user has chosen another language.
export function sayHistoryAnew() {
  spans.forEach(([, words], i) => {
    const one = element("history-spans").children[i];
    if (one) one.textContent = say(words);
  });
  draw();
}

// Call once, when the dashboard is shown; `current_key()` returns the page's current key.
export function showHistory(current_key) {
  key_of = current_key;
  element("history-spans").replaceChildren(...spans.map(([name]) => {
    const one = make("button", "button small", "", { type: "button", "data-span": name });
    one.addEventListener("click", () => choose(name));
    return one;
  }));
  sayHistoryAnew();
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  choose(spans.some(([name]) => name === span) ? span : "1h");
}
