// The part of the bench page that times a whole model: a Dedicated Worker measures (/wasm/decoder_bench_worker.js); the
// texts of its rows are in bench/model_words.js. ?models=SHAPE:WEIGHTS:KV,... measures several models, one after the
// other; bench/README.md lists the other parameters.
import { gigabytes } from "./words.js";
import { askedModels, firstShape, modelCsvOf, models, ms, msOfToken, rowWords, titleOf } from "./model_words.js";
import { copyText, element, make } from "../dom.js";
import { say } from "../words/bench.js";

const asked = askedModels(new URLSearchParams(location.search));
let rows = [];
let worker = null;
let expected = 1;

let shown = { kind: "", state: "none", detail: () => "" };      // `state` is a key of the texts

const select = element("model");
function drawChoices() {
  const chosen = select.value || (asked.length > 0 ? "asked"
    : String(models.findIndex(({ shape }) => shape === firstShape())));
  const options = models.map(({ words }, index) => make("option", "", words(), { value: String(index) }));
  if (asked.length > 0) options.push(make("option", "", say("as_in_address"), { value: "asked" }));
  select.replaceChildren(...options);
  select.value = chosen;
}

function tell(kind, state, detail = shown.detail) {
  shown = { kind, state, detail };
  element("model-state").className = `pill ${kind}`;
  element("model-state").textContent = say(state);
  element("model-detail").textContent = detail();
  document.documentElement.dataset.model = state;
}

// Draws this part of the page; again after the user has chosen another language.
export function drawModelAnew() {
  drawChoices();
  tell(shown.kind, shown.state);
  element("model-tables").replaceChildren();
  for (const row of rows) tableOf(row).append(lineOf(row));
}

function cell(text, class_name = "") { return make("td", class_name, text); }

function lineOf(row) {
  const line = make("tr", row.what === "both" ? "sum" : "");
  line.append(
    cell(rowWords(row), "kernel"),
    cell(ms(msOfToken(row)), "number"),
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
    head.append(make("th", "", say("condition")), make("th", "number", say("per_token")),
      make("th", "number", say("tokens_s")),
      ...["gpu", "prepare", "fetch", "weights"].map((key) => make("th", "number wide", say(key))));
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
  tell(kind, state, detail);
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
    const nameOf = () => [vendor, architecture, description].filter(Boolean).join(" ") || say("a_gpu");
    window.moexAdapter = data.adapter;
    tell("warn", "measuring",
      () => (software ? say("software_model", nameOf()) : say("full_sums", nameOf(), has_f16)));
  } else if (data.stage) {
    element("model-stage").textContent = `${data.stage} …`;
  } else if (data.row) {
    rows.push(data.row);
    window.moexModelRows = rows;          // read by programs that automate or inspect this page
    tableOf(data.row).append(lineOf(data.row));
  } else if (data.done) {
    done += 1;
    element("model-progress").value = done / expected;
  } else if (data.reason) end("bad", "failed", () => data.reason);
  else if (data.finished) end("good", "done");
}

element("model-start").addEventListener("click", () => {
  rows = [];
  done = 0;
  element("model-tables").replaceChildren();
  element("model-start").disabled = true;
  element("model-progress").hidden = false;
  element("model-progress").removeAttribute("value");
  tell("warn", "starting", () => say("filling_detail"));
  const chosen = select.value === "asked" ? asked : [models[Number(select.value)]];
  expected = chosen.length;
  worker = new Worker(new URL("../../wasm/decoder_bench_worker.js", import.meta.url),
    { type: "module", name: "moex-decoder-bench" });
  worker.onmessage = onMessage;
  worker.onerror = (event) => end("bad", "failed", () => say("program_failed", event.message));
  worker.postMessage({ models: chosen.map(({ words, ...model }) => model) });
});
element("model-copy").addEventListener("click", () => copyText(modelCsvOf(rows), element("model-copy")));
