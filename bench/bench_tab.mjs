// A contributor's tab for a bench, in a headless Chromium of its own. Its profile is on disk, because a private window
// keeps what it stores in memory.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { isSettled, servingStatus, tabStatus } from "../tests/browser/support/tab.mjs";
import { launchQuiet } from "./bench_browser.mjs";

const least_mb = 64, steps = 8;      // the slider of the join page: 64 MB doubled up to 8 times

// Resolves to {page, status(), stop()} once the tab has its experts. It opens the link `join` at the address `url`,
// which may be a proxy of the hub. The tab lends at least `budget_mb` MB, or the most that the page offers. `webgpu`
// false: a browser that finds no GPU, so that the tab computes on the processor. With `browser`, of launchQuiet(), the
// tab is in a private window of that one. `prepare(page)` is called before the page loads.
export async function startTab({ url, join: link },
  { budget_mb = Infinity, webgpu = true, browser = null, prepare = async () => {} } = {}) {
  const profile = browser ? null : mkdtempSync(join(tmpdir(), "moex-bench-tab-"));
  const context = browser ? await browser.createBrowserContext() : await launchQuiet({ profile, webgpu });
  const stop = async () => {
    await context.close();
    if (profile) rmSync(profile, { recursive: true, force: true });
  };
  try {
    const page = await context.newPage();
    page.errors = [];
    page.on("pageerror", (error) => page.errors.push(String(error)));
    page.setDefaultTimeout(0);
    await prepare(page);
    await page.goto(link.replace(/^https?:\/\/[^/]+/, url));
    const step = Math.min(steps, Math.max(0, Math.ceil(Math.log2(budget_mb / least_mb))));
    await page.evaluate((value) => {
      const budget = document.querySelector("#budget");
      budget.value = String(value);
      for (const name of ["input", "change"]) budget.dispatchEvent(new Event(name));
    }, step);
    await page.locator("::-p-aria([name=\"Start\"][role=\"button\"])").click();
    await page.waitForFunction(isSettled, { polling: 100 });
    await servingStatus(page);
    return { page, status: () => tabStatus(page), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
