// The bench page: one button, then the rows as they arrive. A Dedicated Worker measures them (/wasm/bench_worker.js);
// their texts are in bench/words.js.
import { drawModelAnew } from "./bench/model.js";
import { gigabytes, csvOf, kernelWords, rowsWords, shapeWords, shareOfBound, sums, us } from "./bench/words.js";
import { copyText, element, make } from "./dom.js";
import { speakIn } from "./language.js";
import { say, table } from "./words/bench.js";

const asked = new URLSearchParams(location.search).get("shapes")?.split(",") ?? ["qwen3-30b-a3b", "paper"];
let blocks_expected = 3 * asked.length;      // each shape is measured with 1, 8 and 64 rows
let rows = [];
let worker = null;
let shown = { kind: "", state: "none", detail: () => say("none_detail") };      // `state` is a key of the texts

const boundOf = () => rows.find(({ what }) => what === "read")?.gb_s ?? 0;

function tell(kind, state, detail = shown.detail) {
  shown = { kind, state, detail };
  element("state").className = `pill ${kind}`;
  element("state").textContent = say(state);
  element("detail").textContent = detail();
  document.documentElement.dataset.phase = state;
}

// ---- display

function cell(text, class_name = "") { return make("td", class_name, text); }

function lineOf(row) {
  const line = make("tr", sums.includes(row.what) ? "sum" : "");
  line.append(
    cell(kernelWords(row.what), "kernel"),
    cell(us(row.gpu_us), "number"),
    cell(shareOfBound(row, boundOf()), "number"),
    cell(gigabytes(row.gb_s).replace("–", ""), "number wide"),
    cell(us(row.p50_us), "number wide"),
  );
  return line;
}

// Returns the table for a shape and a number of rows. The table is created with its first result.
function tableOf({ shape, rows: num_rows }) {
  const id = `table-${shape}-${num_rows}`;
  if (!element(id)) {
    const card = make("section", "card");
    const lines = make("table");
    const head = make("tr");
    head.append(make("th", "", say("kernel")), make("th", "number", say("gpu")), make("th", "number", say("of_bound")),
      make("th", "number wide", say("weights")), make("th", "number wide", say("frame")));
    const body = make("tbody", "", "", { id });
    const top = make("thead");
    top.append(head);
    lines.append(top, body);
    const scroll = make("div", "scroll-x");
    scroll.append(lines);
    card.append(make("h2", "", shapeWords(shape)), make("p", "muted small", rowsWords(num_rows)), scroll);
    element("tables").append(card);
  }
  return element(id);
}

function drawRow(row) {
  if (row.what === "read") element("read").textContent = gigabytes(row.gb_s);
  else if (row.what === "empty_round") element("empty").textContent = us(row.p50_us);
  else tableOf(row).append(lineOf(row));
}

function onRow(row) {
  rows.push(row);
  window.moexRows = rows;          // read by programs that automate or inspect this page
  element("live").hidden = false;
  drawRow(row);

  if (row.what !== "round") return;
  if (row.rows === 1 && row.shape === "qwen3-30b-a3b") element("token").textContent = us(row.gpu_us);
  const blocks = rows.filter(({ what }) => what === "round").length;
  element("progress").value = Math.min(1, blocks / blocks_expected);
}

// Draws all texts of the page again after the user has chosen another language.
function drawAnew() {
  tell(shown.kind, shown.state);
  element("start").textContent = say(rows.length > 0 ? "measure_again" : "measure");
  element("tables").replaceChildren();
  rows.forEach(drawRow);
  drawModelAnew();
}

// ---- the worker

function end(kind, state, detail) {
  tell(kind, state, detail);
  worker?.terminate();
  worker = null;
  element("progress").hidden = true;
  element("start").disabled = false;
  element("start").textContent = say("measure_again");
  element("copy").hidden = rows.length === 0;
  element("notes").hidden = rows.length === 0;
}

const nameOf = ({ vendor, architecture, description }) => (
  [vendor, architecture, description].filter(Boolean).join(" ") || say("a_gpu"));

function onMessage({ data }) {
  if (data.adapter) {
    tell("warn", "measuring", () => say(data.adapter.software ? "software" : "on", nameOf(data.adapter)));
    if (data.adapter.software) blocks_expected = asked.length;
  } else if (data.row) onRow(data.row);
  else if (data.reason) end("bad", "failed", () => data.reason);
  else if (data.finished) end("good", "done");
}

element("start").addEventListener("click", () => {
  rows = [];
  element("tables").replaceChildren();
  element("start").disabled = true;
  element("progress").hidden = false;
  element("progress").value = 0;
  tell("warn", "starting", () => say("starting_detail"));
  worker = new Worker(new URL("../wasm/bench_worker.js", import.meta.url), { type: "module", name: "moex-bench" });
  worker.onmessage = onMessage;
  worker.onerror = (event) => end("bad", "failed", () => say("program_failed", event.message));
  worker.postMessage({ shapes: asked });
});
element("copy").addEventListener("click", () => copyText(csvOf(rows), element("copy")));
speakIn(table, element("language"), drawAnew);
drawModelAnew();
