#!/usr/bin/env node
// Opens a headless Chromium as a contributor: goes to a join link and presses Start, then prints the page's state as it
// changes.
//   usage: MOEX_NPM=build/npm node scripts/open_tab.mjs JOIN_URL
// The script is for machines without a desktop and for trials on one machine; contributors open the link in their own
// browser. Chromium gets --no-sandbox only as root, and only for a page on the loopback interface.
import { createRequire } from "node:module";
import { existsSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";

const url = process.argv[2];
if (!url || url === "--help") {
  console.log("usage: MOEX_NPM=build/npm node scripts/open_tab.mjs JOIN_URL");
  process.exit(url ? 0 : 2);
}
const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));
const { chromium } = require("playwright-core");

function findChromium() {
  if (process.env.MOEX_CHROMIUM) return process.env.MOEX_CHROMIUM;
  for (const name of ["chromium-headless-shell", "chromium", "google-chrome"]) {
    try {
      return execFileSync("/bin/sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch { /* the next one */ }
  }
  throw new Error("no Chromium found: scripts/setup.sh --for tab installs one, or set MOEX_CHROMIUM");
}

const loopback = ["127.0.0.1", "localhost", "[::1]"].includes(new URL(url).hostname);
const root = process.getuid?.() === 0;
if (root && !loopback) {
  console.error("open_tab: as root only a loopback page is opened, since the browser's sandbox does not work for root");
  process.exit(2);
}

const args = ["--enable-unsafe-webgpu", "--disable-quic", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-first-run"];
if (existsSync("/proc/driver/nvidia")) {
  args.push("--ignore-gpu-blocklist", "--enable-features=Vulkan,DefaultANGLEVulkan,VulkanFromANGLE",
    "--use-angle=vulkan", "--enable-gpu");
}
const browser = await chromium.launch({ executablePath: findChromium(), args, chromiumSandbox: !root });
const page = await (await browser.newContext({ ignoreHTTPSErrors: loopback })).newPage();
const stop = async () => { await browser.close(); process.exit(0); };
process.on("SIGINT", stop);
process.on("SIGTERM", stop);

await page.goto(url);
await page.getByRole("button", { name: "Start" }).click();
let shown = "";
for (;;) {
  const state = await page.locator("#state").innerText().catch(() => "");
  if (state !== shown) console.error(`tab: ${(shown = state)}`);
  await page.waitForFunction((before) => document.querySelector("#state")?.innerText !== before, shown, { timeout: 0 })
    .catch(() => process.exit(1));
}
