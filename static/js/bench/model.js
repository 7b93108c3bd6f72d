// The part of the bench page that times a whole model: a Dedicated Worker measures (/wasm/decoder_bench_worker.js); the
// texts of its rows are in bench/model_words.js. ?models=SHAPE:WEIGHTS:KV,... measures several models, one after the
// other; bench/README.md lists the other parameters.
import { gigabytes } from "/js/bench/words.js";
import { askedModels, modelCsvOf, models, ms, rowWords, titleOf } from "/js/bench/model_words.js";
import { copyText, element, make } from "/js/dom.js";

const asked = askedModels(new URLSearchParams(location.search));
let rows = [];
let worker = null;
let expected = 1;

const select = element("model");
for (const [index, { words }] of models.entries()) select.append(make("option", "", words, { value: String(index) }));
select.value = String(models.findIndex(({ shape }) => shape === "qwen2-1.5b"));
if (asked.length > 0) {
  select.append(make("option", "", "As in the address", { value: "asked" }));
  select.value = "asked";
}

function say(kind, state, detail) {
  element("model-state").className = `pill ${kind}`;
  element("model-state").textContent = state;
  element("model-detail").textContent = detail;
  document.documentElement.dataset.model = state;
}

function cell(text, class_name = "") { return make("td", class_name, text); }

function lineOf(row) {
  const line = make("tr", row.what === "both" ? "sum" : "");
  line.append(
    cell(rowWords(row), "kernel"),
    cell(ms(row.ms_token || row.exec_ms), "number"),
    cell(row.ms_token > 0 ? (1000 / row.ms_token).toFixed(row.ms_token > 10 ? 1 : 0) : "", "number"),
    cell(row.ms_token > 0 ? ms(row.exec_ms) : "", "number wide"),
    cell(ms(row.prep_ms), "number wide"),
    cell(ms(row.fetch_ms), "number wide"),
    cell(row.mb > 0 ? gigabytes(row.gb_s) : "", "number wide"),
  );
  return line;
}

// Returns the table for a model. The table is created with its first result.
function tableOf(row) {
  const id = `model-${row.shape}-${row.weights.replace(" ", "-")}`;
  if (!element(id)) {
    const head = make("tr");
    head.append(make("th", "", "Condition"), make("th", "number", "Per token"), make("th", "number", "tok/s"),
      ...["GPU", "Prepare", "Fetch", "Weights"].map((word) => make("th", "number wide", word)));
    const top = make("thead");
    top.append(head);
    const table = make("table");
    table.append(top, make("tbody", "", "", { id }));
    const scroll = make("div", "scroll-x");
    scroll.append(table);
    const card = make("section", "card");
    card.append(make("h2", "", titleOf(row)), scroll);
    element("model-tables").append(card);
  }
  return element(id);
}

function end(kind, state, detail) {
  say(kind, state, detail);
  worker?.terminate();
  worker = null;
  element("model-stage").textContent = "";
  element("model-progress").hidden = true;
  element("model-start").disabled = false;
  element("model-copy").hidden = rows.length === 0;
}

let done = 0;
function onMessage({ data }) {
  if (data.adapter) {
    const { vendor, architecture, description, software, has_f16 } = data.adapter;
    const name = [vendor, architecture, description].filter(Boolean).join(" ") || "a GPU";
    window.moexAdapter = data.adapter;
    say("warn", "measuring", software ? `On ${name}: a software adapter, measured briefly.`
      : `On ${name}${has_f16 ? "" : ", without half precision"}. Sums are kept in full precision.`);
  } else if (data.stage) {
    element("model-stage").textContent = `${data.stage} …`;
  } else if (data.row) {
    rows.push(data.row);
    window.moexModelRows = rows;          // read by programs that automate or inspect this page
    tableOf(data.row).append(lineOf(data.row));
  } else if (data.done) {
    done += 1;
    element("model-progress").value = done / expected;
  } else if (data.reason) end("bad", "failed", data.reason);
  else if (data.finished) end("good", "done", element("model-detail").textContent);
}

element("model-start").addEventListener("click", () => {
  rows = [];
  done = 0;
  element("model-tables").replaceChildren();
  element("model-start").disabled = true;
  element("model-progress").hidden = false;
  element("model-progress").removeAttribute("value");
  say("warn", "starting", "Looking for the GPU, preparing its programs and filling its memory.");
  const chosen = select.value === "asked" ? asked : [models[Number(select.value)]];
  expected = chosen.length;
  worker = new Worker("/wasm/decoder_bench_worker.js", { type: "module", name: "moex-decoder-bench" });
  worker.onmessage = onMessage;
  worker.onerror = (event) => end("bad", "failed", `The program failed: ${event.message || "it did not load"}.`);
  worker.postMessage({ models: chosen.map(({ words, ...model }) => model) });
});
element("model-copy").addEventListener("click", () => copyText(modelCsvOf(rows), element("model-copy")));
