// The operator's page: keys, the join link, contributors, settings. The admin key is sent as Bearer token and kept in
// this tab only.
import {
  banWords, bannedName, inOrder, keyState, limitWords, mayRevoke, qrPath, termWords, usedWords, workerName,
  workerPills,
} from "./admin/words.js";
import { getJson, postJson } from "./api.js";
import { button, confirmIn, copyText, element, make } from "./dom.js";
import { FleetTable } from "./fleet.js";
import { listenForForget } from "./forget.js";
import { compact, ms, span } from "./format.js";
import { speakIn } from "./language.js";
import { drop, read, write } from "./storage.js";
import { say, table, word } from "./words/admin.js";
import { helpOf } from "./words/settings.js";

const refresh_ms = 2000;
const key_name = "moex-admin-key";
let key = read(key_name, "");
let settings = [];
let timer = 0;
let shown = null;      // the hub's newest answers, {keys, status, bans}; null before the first poll

// ---- tables: a column is [name of its head, function that makes its cell, CSS class]; only screen readers show the
// head of the column `acts`, which has the buttons

const pill = ([kind, word]) => make("span", `pill ${kind}`, word);

const key_columns = [
  ["name", (one) => one.name, "name"],
  ["state", (one) => pill(keyState(one.state))],
  ["may", (one) => word("role", one.role)],
  ["id", (one) => make("code", "", one.id)],
  ["limit", limitWords, "number"],
  ["today", (one) => usedWords(one.today), "number"],
  ["all", (one) => usedWords(one.all), "number"],
  ["term", (one, now_s) => termWords(one, now_s)],
  ["actions", (one) => (mayRevoke(one) ? act("danger", "revoke", one.id, () => askToRevoke(one)) : ""), "acts"],
];
const worker_columns = [
  ["name", workerName, "name"],
  ["state", (worker) => group("pills", workerPills(worker).map(pill))],
  ["gpu", (worker) => [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend, "name"],
  ["experts", (worker) => `${worker.units_ready} / ${worker.units_assigned}`, "number"],
  ["answered", (worker) => compact.format(worker.pairs_answered), "number"],
  ["call", (worker) => ms(worker.p50_ms), "number"],
  ["wrong", (worker) => `${worker.timeouts} / ${worker.bad_answers}`, "number"],
  ["for", (worker) => span(worker.connected_s), "number"],
  ["actions", workerButtons, "acts"],
];
const ban_columns = [
  ["worker", bannedName, "name"],
  ["closed", banWords],
  ["times", (ban) => String(ban.times), "number"],
  ["why", (ban) => ban.reason, "name"],
  ["actions", (ban) => act("", "lift", ban.worker_key, () => lift(ban)), "acts"],
];
const setting_columns = [
  ["setting", (one) => one.name],
  ["value", (one) => one.value || "–"],
  ["from", (one) => word("source", one.source)],
  ["help", helpOf],
];

function group(class_name, nodes) {
  const box = make("span", class_name);
  box.append(...nodes);
  return box;
}

// Makes a button of a table row. Its data-act is the same after the row is drawn again, so drawRows() can restore the
// focus.
const act = (kind, name, id, run, more = {}) =>
  button(`small ${kind}`, say(name), run, { "data-act": `${name} ${id}`, ...more });

function workerButtons(worker) {
  const order = (what, on) => () => orderWorker(what, { worker: worker.id, on });
  const why = worker.has_key ? {} : { disabled: "", title: say("no_key_given") };
  return group("acts", [
    worker.drained ? act("", "use_again", worker.id, order("drain", false))
      : act("", "drain", worker.id, order("drain", true)),
    worker.pinned ? act("", "unpin", worker.id, order("pin", false)) : act("", "pin", worker.id, order("pin", true)),
    act("danger", "ban", worker.id, () => askToBan(worker), why),
  ]);
}

function drawHeads(id, columns) {
  element(id).replaceChildren(...columns.map(([name, , kind = ""]) => {
    const words = say(`column_${name}`);
    const head = make("th", kind === "number" ? kind : "", kind === "acts" ? "" : words, { scope: "col" });
    if (kind === "acts") head.append(make("span", "visually-hidden", words));
    return head;
  }));
}

// Draws the rows of a table again, and gives the focus back to the button that had it.
function drawRows(id, rows) {
  const { act: focused } = document.activeElement?.dataset ?? {};
  element(id).replaceChildren(...rows);
  if (focused && document.activeElement === document.body)
    [...element(id).querySelectorAll("[data-act]")].find(({ dataset }) => dataset.act === focused)?.focus();
}

function rowOf(columns, one, ...more) {
  const row = make("tr");
  for (const [name, tell, kind = ""] of columns) {
    const cell = make("td", kind, "", { "data-name": kind === "acts" ? "" : say(`column_${name}`) });
    cell.append(tell(one, ...more));
    row.append(cell);
  }
  return row;
}

// ---- the sections

function drawKeys({ keys, local }, now_s) {
  const rows = inOrder(keys).map((one) => {
    const row = rowOf(key_columns, one, now_s);
    row.classList.toggle("ended", one.state !== "open");
    return row;
  });
  drawRows("keys", rows);
  element("local-words").textContent = say("local", usedWords(local.today), usedWords(local.all));
}

function drawWorkers(workers) {
  element("no-workers").hidden = workers.length > 0;
  element("worker-table").hidden = workers.length === 0;
  drawRows("workers", workers.map((worker) => rowOf(worker_columns, worker)));
}

const fleet_table = new FleetTable(element("fleet"), element("fleet-head"), element("fleet-hubs"));

function drawBans(bans) {
  element("bans-box").hidden = bans.length === 0;
  drawRows("bans", bans.map((ban) => {
    const row = rowOf(ban_columns, ban);
    row.classList.toggle("ended", ban.is_over);
    return row;
  }));
}

function drawJoin({ url, qr = [] }) {
  if (element("join-url").textContent === url) return;
  element("join-url").textContent = url;
  element("qr").hidden = qr.length === 0;
  if (qr.length === 0) return;

  const svg_space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(svg_space, "svg");
  const path = document.createElementNS(svg_space, "path");
  const side = qr.length + 8;
  svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
  svg.setAttribute("shape-rendering", "crispEdges");
  path.setAttribute("d", qrPath(qr));
  svg.append(path);
  element("qr").replaceChildren(svg);
}

function drawSettings() {
  const only_given = element("only-given").checked;
  const shown = settings.filter((one) => !only_given || one.source !== "default");
  element("settings").replaceChildren(...shown.map((one) => rowOf(setting_columns, one)));
}

function drawStatus(status) {
  const active = status.workers.filter((worker) => worker.state === "active").length;
  element("state").className = `pill ${status.health === "ok" ? "good" : "warn"}`;
  element("state").textContent = word("hub", status.health);
  const { running, waiting } = status.engine;
  element("summary").textContent = say("summary", status.model.name, span(status.uptime_s), active, running, waiting);
  drawWorkers(status.workers);
  fleet_table.draw(status.fleet);
}

function draw() {
  if (!shown) return;
  drawKeys(shown.keys, Date.now() / 1000);
  drawStatus(shown.status);
  drawBans(shown.bans);
}

function drawAllHeads() {
  drawHeads("key-heads", key_columns);
  drawHeads("worker-heads", worker_columns);
  drawHeads("ban-heads", ban_columns);
  drawHeads("setting-heads", setting_columns);
}

// Draws all texts of the page again after the user has chosen another language.
function drawAnew() {
  drawAllHeads();
  drawSettings();
  draw();
}

// ---- requests

function tell(kind, sentence) {
  element("notice").className = `notice ${kind}`;
  element("notice").hidden = !sentence;
  element("notice").textContent = sentence;
}

// Forgets a key that the hub does not accept, and shows the key form with the reason `sentence`.
function close(sentence) {
  clearTimeout(timer);
  key = "";
  drop(key_name);
  element("rooms").hidden = true;
  element("key-form").hidden = false;
  element("state").className = "pill warn";
  element("state").textContent = say("key_needed");
  element("summary").textContent = "";
  tell("", sentence);
}

async function refresh() {
  clearTimeout(timer);
  try {
    const [keys, status, bans] = await Promise.all(
      ["api/admin/keys", "api/status", "api/admin/bans"].map((path) => getJson(path, key)));
    if (keys.status === 401 || keys.status === 403) return close(say("not_admin"));
    const failed = [keys, status, bans].find(({ ok }) => !ok);
    if (failed) throw new Error(failed.body?.error?.message ?? say("no_answer"));
    if (element("rooms").hidden) await openRooms();
    shown = { keys: keys.body, status: status.body, bans: bans.body.bans };
    draw();
    tell("", "");
  } catch (failure) {
    element("state").className = "pill bad";
    element("state").textContent = say("no_answer");
    tell("bad", say("silent_why", failure.message));
  }
  timer = setTimeout(refresh, refresh_ms);
}

async function openRooms() {
  const [join, in_force] = await Promise.all([getJson("api/admin/join", key), getJson("api/admin/settings", key)]);
  if (!join.ok || !in_force.ok) throw new Error(say("no_settings"));
  drawJoin(join.body);
  settings = in_force.body.settings;
  drawSettings();
  element("key-form").hidden = true;
  element("rooms").hidden = false;
}

// Sends the request of a button to the hub. Resolves to the answer, or to null if the hub refused; the page shows why.
async function order(path, body) {
  try {
    const answer = await postJson(path, body, key);
    if (answer.ok) return answer.body;
    tell("bad", say("refused", answer.body?.error?.message ?? answer.status));
  } catch {
    tell("bad", say("silent"));
  }
  return null;
}

// Asks the operator for confirmation; resolves to true or false.
function ask(head, words, yes) {
  element("ask-head").textContent = head;
  element("ask-words").textContent = words;
  element("ask-yes").textContent = yes;
  return confirmIn(element("ask"), element("ask-yes"), element("ask-no"));
}

async function askToRevoke(one) {
  if (!await ask(say("ask_revoke"), say("ask_revoke_words", one.name, one.id), say("revoke"))) return;
  if (await order("api/admin/keys/revoke", { id: one.id })) refresh();
}

async function orderWorker(what, body) {
  if (await order(`api/admin/workers/${what}`, body)) refresh();
}

async function askToBan(worker) {
  const words = say("ask_ban_words", workerName(worker));
  if (await ask(say("ask_ban"), words, say("ban"))) orderWorker("ban", { worker: worker.id });
}

async function lift({ worker_key }) {
  if (await order("api/admin/bans/lift", { worker_key })) refresh();
}

element("rotate").addEventListener("click", async () => {
  if (!await ask(say("ask_link"), say("ask_link_words"), say("new_link"))) return;
  const join = await order("api/admin/join/rotate", {});
  if (join) drawJoin(join);
});

element("make-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const made = await order("api/admin/keys", {
    name: element("key-name").value.trim(), role: element("key-role").value,
    tokens_per_minute: Number(element("key-limit").value), expires_days: Number(element("key-days").value),
  });
  if (!made) return;

  event.target.reset();
  element("fresh-words").textContent = say("fresh", made.name);
  element("fresh-value").textContent = made.key;
  element("fresh-key").hidden = false;
  refresh();
});
element("hide-key").addEventListener("click", () => {
  element("fresh-value").textContent = "";
  element("fresh-key").hidden = true;
});
element("copy-key").addEventListener("click", () => copyText(element("fresh-value").textContent, element("copy-key")));
element("copy-join").addEventListener("click", () => copyText(element("join-url").textContent, element("copy-join")));
element("only-given").addEventListener("change", drawSettings);
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key").value.trim();
  element("key").value = "";
  write(key_name, key);
  refresh();
});

// ---- start: a one-time link is exchanged for a key, and removed from the address

async function begin() {
  const once = new URLSearchParams(location.hash.slice(1)).get("once");
  if (once) {
    history.replaceState(null, "", location.pathname);
    const claimed = await postJson("api/admin/claim", {}, once).catch(() => null);
    if (claimed?.ok) {
      key = claimed.body.key;
      write(key_name, key);
    } else if (!key) {
      return close(claimed?.body?.error?.message ? say("opens_nothing", claimed.body.error.message)
        : say("silent"));
    }
  }
  if (!key) return close("");
  return refresh();
}

listenForForget();
speakIn(table, element("language"), drawAnew);
drawAllHeads();
begin();
