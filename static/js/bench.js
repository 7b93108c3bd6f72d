// The bench page: one button, then the rows as they arrive. A Dedicated Worker measures them (/wasm/bench_worker.js);
// their texts are in bench/words.js.
import { gigabytes, csvOf, kernels, rowsWords, shapes, shareOfBound, sums, us } from "/js/bench/words.js";
import { copyText, element, make } from "/js/dom.js";

const asked = new URLSearchParams(location.search).get("shapes")?.split(",") ?? ["qwen3-30b-a3b", "paper"];
let blocks_expected = 3 * asked.length;      // each shape is measured with 1, 8 and 64 rows
let rows = [];
let worker = null;

const boundOf = () => rows.find(({ what }) => what === "read")?.gb_s ?? 0;

function say(kind, state, detail) {
  element("state").className = `pill ${kind}`;
  element("state").textContent = state;
  element("detail").textContent = detail;
  document.documentElement.dataset.phase = state;
}

// ---- display

function cell(text, class_name = "") { return make("td", class_name, text); }

function lineOf(row) {
  const line = make("tr", sums.includes(row.what) ? "sum" : "");
  line.append(
    cell(kernels[row.what] ?? row.what, "kernel"),
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
    const table = make("table");
    const head = make("tr");
    head.append(make("th", "", "Kernel"), make("th", "number", "GPU"), make("th", "number", "Of the bound"),
      make("th", "number wide", "Weights"), make("th", "number wide", "Frame to frame"));
    const body = make("tbody", "", "", { id });
    const top = make("thead");
    top.append(head);
    table.append(top, body);
    const scroll = make("div", "scroll-x");
    scroll.append(table);
    card.append(make("h2", "", shapes[shape] ?? shape), make("p", "muted small", rowsWords(num_rows)), scroll);
    element("tables").append(card);
  }
  return element(id);
}

function onRow(row) {
  rows.push(row);
  window.moexRows = rows;          // read by programs that automate or inspect this page
  element("live").hidden = false;
  if (row.what === "read") element("read").textContent = gigabytes(row.gb_s);
  else if (row.what === "empty_round") element("empty").textContent = us(row.p50_us);
  else tableOf(row).append(lineOf(row));

  if (row.what !== "round") return;
  if (row.rows === 1 && row.shape === "qwen3-30b-a3b") element("token").textContent = us(row.gpu_us);
  const blocks = rows.filter(({ what }) => what === "round").length;
  element("progress").value = Math.min(1, blocks / blocks_expected);
}

// ---- the worker

function end(kind, state, detail) {
  say(kind, state, detail);
  worker?.terminate();
  worker = null;
  element("progress").hidden = true;
  element("start").disabled = false;
  element("start").textContent = "Measure again";
  element("copy").hidden = rows.length === 0;
  element("notes").hidden = rows.length === 0;
}

function nameOf({ vendor, architecture, description, software }) {
  const name = [vendor, architecture, description].filter(Boolean).join(" ") || "a GPU";
  return software ? `${name}: a software adapter, measured briefly, one expert and one row` : name;
}

function onMessage({ data }) {
  if (data.adapter) {
    say("warn", "measuring", `On ${nameOf(data.adapter)}.`);
    if (data.adapter.software) blocks_expected = asked.length;
  } else if (data.row) onRow(data.row);
  else if (data.reason) end("bad", "failed", data.reason);
  else if (data.finished) end("good", "done", element("detail").textContent);
}

element("start").addEventListener("click", () => {
  rows = [];
  element("tables").replaceChildren();
  element("start").disabled = true;
  element("progress").hidden = false;
  element("progress").value = 0;
  say("warn", "starting", "Looking for the GPU and preparing its programs.");
  worker = new Worker("/wasm/bench_worker.js", { type: "module", name: "moex-bench" });
  worker.onmessage = onMessage;
  worker.onerror = (event) => end("bad", "failed", `The program failed: ${event.message || "it did not load"}.`);
  worker.postMessage({ shapes: asked });
});
element("copy").addEventListener("click", () => copyText(csvOf(rows), element("copy")));
