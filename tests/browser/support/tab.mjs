// A real Chromium with the software adapter (or a GPU if there is one), and contributors' tabs in it.
import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";

const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));
const { chromium } = require("playwright-core");

export function findChromium() {
  if (process.env.MOEX_CHROMIUM) return process.env.MOEX_CHROMIUM;
  for (const name of ["chromium-headless-shell", "chromium", "google-chrome"]) {
    try {
      return execFileSync("/bin/sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch { /* the next one */ }
  }
  throw new Error("no Chromium: install chromium-headless-shell or set MOEX_CHROMIUM");
}

const quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync"];
// `webgpu` false: a browser that finds no GPU, like most browsers on a machine without one.
export const launch = (extra = [], { webgpu = true } = {}) => chromium.launch(chromiumOptions(extra, webgpu));
// Opens a browser with the profile folder `profile`, and resolves to its one context. The context keeps what it stores
// when it is closed.
export const launchProfile = (profile, { webgpu = true } = {}) =>
  chromium.launchPersistentContext(profile, chromiumOptions([], webgpu));

export function chromiumOptions(extra, webgpu) {
  const root = process.getuid?.() === 0;
  const gpu = process.env.MOEX_CHROMIUM_ARGS ? process.env.MOEX_CHROMIUM_ARGS.split(" ") : ["--enable-unsafe-webgpu"];
  const args = [...quiet, ...(webgpu ? gpu : []), ...extra];
  return { executablePath: findChromium(), args, chromiumSandbox: !root, timeout: 0 };
}

// Opens a tab that joins the hub. Each context acts as a separate browser, with its own cache, storage and worker key.
export async function openTab(context, join_url, { wait = true } = {}) {
  const page = await context.newPage();
  page.setDefaultTimeout(0);                                   // only the time limit of the test ends a wait
  page.errors = [];
  page.warnings = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") page.errors.push(message.text());
    if (message.type() === "warning") page.warnings.push(message.text());
  });
  await page.goto(join_url);
  await page.getByRole("button", { name: "Start", exact: true }).click();
  if (wait) await serving(page);
  return page;
}

// Resolves to the result of `work`, or rejects with the page's first error: a broken page would show nothing more.
export function unlessBroken(page, work) {
  const broken = new Promise((_, reject) => { page.once("pageerror", reject); });
  return Promise.race([work(), broken]);
}

export const tabStatus = (page) => page.evaluate(() => window.moexStatus);

// This function runs in the page. It returns true if the tab serves with all its experts ready, or cannot serve.
export function isSettled() {
  const status = window.moexStatus;
  if (!status) return false;
  if (["failed", "refused"].includes(status.phase)) return true;
  return status.phase === "serving" && status.units_ready === status.units_assigned && status.units_assigned > 0;
}

// Resolves to the status of a settled tab; rejects if it cannot serve.
export async function servingStatus(page) {
  const status = await tabStatus(page);
  if (status.phase !== "serving")
    throw new Error(`the tab is ${status.phase}: ${status.detail}; ${page.errors.join("; ")}`);
  return status;
}

// Resolves when the tab serves with all its experts ready; rejects when it reaches a state in which it cannot serve.
export async function serving(page) {
  await page.waitForFunction(isSettled, null, { timeout: 0, polling: 100 });
  return servingStatus(page);
}
