// Texts of the admin page and of the history, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  banWords, bannedName, inOrder, limitWords, mayRevoke, qrPath, termWords, usedWords, workerName, workerPills,
} from "../../static/js/admin/words.js";
import { historySeries, historyWords, lonePoints } from "../../static/js/status/series.js";

const day_s = 86400;
const now_s = Date.UTC(2026, 10, 22) / 1000;
const key = (more) => ({
  id: "1a2b3c4d", name: "ada", role: "api", state: "open", tokens_per_minute: 0, created_s: now_s - day_s,
  expires_s: 0, revoked_s: 0, ...more,
});

test("TermOfAKeyIsShownInDays", () => {
  assert.equal(termWords(key({}), now_s), "for ever");
  assert.equal(termWords(key({ expires_s: now_s + 30 * day_s }), now_s), "until 2026-12-22 (30 days)");
  assert.equal(termWords(key({ expires_s: now_s + 7200 }), now_s), "until 2026-11-22 (2 h)");
  assert.equal(termWords(key({ state: "expired", expires_s: now_s - day_s }), now_s), "ended 2026-11-21");
  assert.equal(termWords(key({ state: "revoked", revoked_s: now_s }), now_s), "ended 2026-11-22");
});

test("LimitsAndUseAreFigures", () => {
  assert.deepEqual([0, 20000].map((tokens_per_minute) => limitWords({ tokens_per_minute })), ["none", "20,000 / min"]);
  assert.equal(usedWords({ prompt_tokens: 1200, answer_tokens: 345 }), "1.5K");
});

test("OpenKeysAreFirstAndTheLinkHasNoRevokeButton", () => {
  const gone = key({ id: "gone", state: "revoked" });
  const keys = [key({ id: "old", created_s: 1 }), gone, key({ id: "new", created_s: 2 })];
  assert.deepEqual(inOrder(keys).map(({ id }) => id), ["new", "old", "gone"]);
  assert.deepEqual([key({}), key({ state: "expired" }), key({ role: "join", name: "link" })].map(mayRevoke),
    [true, false, false]);
});

test("OperatorOrdersAreShownBesideAWorkersState", () => {
  const worker = { id: 7, nickname: "", state: "active", units_assigned: 4, drained: false, pinned: false };
  assert.equal(workerName(worker), "#7");
  assert.deepEqual(workerPills(worker), [["good", "active"]]);
  assert.deepEqual(workerPills({ ...worker, drained: true, pinned: true }), [["warn", "draining"], ["", "pinned"]]);
  assert.deepEqual(workerPills({ ...worker, drained: true, units_assigned: 0 }), [["warn", "drained"]]);
});

test("BanNamesItsWorkerAndItsEnd", () => {
  const ban = { nickname: "", worker_key: "0123456789abcdef", until_s: now_s + day_s, is_over: false };
  assert.equal(bannedName(ban), "0123456789ab");
  assert.equal(bannedName({ ...ban, nickname: "Ada" }), "Ada");
  assert.equal(banWords(ban), "until 2026-11-23");
  assert.equal(banWords({ ...ban, is_over: true }), "over");
});

test("QrCodeHasALightBorder", () => {
  assert.equal(qrPath(["101", "000", "011"]), "M4 4h1v1h-1zM6 4h1v1h-1zM5 6h2v1h-2z");
});

test("HistoryHasNullForStepsWithoutTheHub", () => {
  const point = (time_s, more) => ({
    time_s, tokens_per_s: 2, first_token_ms: null, call_p50_ms: 1, call_p99_ms: 2, call_p999_ms: 5, workers: 3,
    covered: 64, units: 128, ...more,
  });
  const body = { now_s: 36000 + 30, span_s: 3600, step_s: 60, points: [point(36000), point(36000 - 120)] };
  const series = historySeries(body);
  assert.equal(series.times.length, 61);
  assert.deepEqual(series.times.slice(-2), [35940, 36000]);
  assert.deepEqual(series.tokens.slice(-3), [2, null, 2]);
  assert.deepEqual(series.first_token.slice(-1), [null]);
  assert.deepEqual(series.p999.slice(-3), [5, null, 5]);
  assert.deepEqual(series.coverage.slice(-3), [50, null, 50]);
  assert.match(historyWords(body), /2 tokens per second on average, 3 contributors at most, in 2 steps of 2 an expert/);
  assert.match(historyWords({ ...body, points: [] }), /Nothing yet/);
});

test("ValueWithoutNeighboursIsDrawnAsAPoint", () => {
  assert.deepEqual(lonePoints([null, 3, null, 1, 2, null, 4]), [1, 6]);
  assert.deepEqual(lonePoints([5]), [0]);
  assert.deepEqual(lonePoints([null, null]), []);
});
