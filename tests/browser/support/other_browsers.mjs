// Firefox and WebKitGTK for stories, each over its own protocol, behind one small interface: pages are opened, scripts
// run in them, and a story waits for what it wants to see.
import { execFileSync, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

import { freePort } from "./proxy.mjs";

const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));

function found(names) {
  for (const name of names) {
    try {
      const script = `ls ${name} 2>/dev/null || command -v ${name}`;
      return execFileSync("/bin/sh", ["-c", script], { encoding: "utf8" }).trim().split("\n")[0];
    } catch { /* the next one */ }
  }
  return "";
}
export const firefox = found(["firefox-esr"]);
const webkit_driver = found(["WebKitWebDriver"]);
const mini_browser = found(["/usr/lib/*/webkit2gtk-4.1/MiniBrowser", "/usr/lib/*/webkit2gtk-4.0/MiniBrowser"]);
const xvfb = found(["Xvfb"]);
export const has_webkit = webkit_driver !== "" && mini_browser !== "" && xvfb !== "";

// What both browsers can do with a page. A script is a function that runs in the page; its arguments are JSON values.
class Page {
  // Calls isDone(...args) in the page until it returns a true value, and resolves to that value. Only the time limit of
  // the test ends the wait.
  async until(isDone, ...args) {
    for (;;) {
      const value = await this.run(isDone, ...args);
      if (value) return value;
      await new Promise((go) => { setTimeout(go, 100); });
    }
  }
  text(selector) { return this.run((one) => document.querySelector(one)?.textContent.trim() ?? "", selector); }
  hasText(selector, words) {
    return this.until((one, text) => {
      const nodes = [...document.querySelectorAll(one)];
      return nodes.some((node) => node.textContent.includes(text) && node.checkVisibility());
    }, selector, words);
  }
  // Writes into a field, seen or not, as if its user had.
  set(selector, value) {
    return this.run((one, text) => {
      const node = document.querySelector(one);
      node.value = text;
      node.dispatchEvent(new Event("input"));
    }, selector, value);
  }
  isVisible(selector) {
    return this.run((one) => document.querySelector(one)?.checkVisibility() ?? false, selector);
  }
}

// ---- Firefox, over WebDriver BiDi

class FirefoxPage extends Page {
  constructor(page) {
    super();
    this.page = page;
    this.errors = [];
    page.on("pageerror", (error) => this.errors.push(String(error)));
    page.setDefaultTimeout(0);
  }
  run(script, ...args) { return this.page.evaluate(script, ...args); }
  async click(selector) { await this.page.locator(selector).click(); }
  async type(selector, words) { await this.page.locator(selector).fill(words); }
  async press(selector, key) {
    await this.page.focus(selector);
    await this.page.keyboard.press(key);
  }
  async select(selector, value) { await this.page.select(selector, value); }
  async reload() { await this.page.reload(); }
  async close() { await this.page.close(); }
  // Returns a list that grows by the path of each request of the page.
  requests() {
    const paths = [];
    this.page.on("request", (request) => paths.push(new URL(request.url()).pathname));
    return paths;
  }
}

export class Firefox {
  // `prefs`: settings of about:config.
  static async start(prefs = {}) {
    const browser = new Firefox();
    browser.engine = await require("puppeteer-core").launch({
      browser: "firefox", executablePath: firefox, headless: true, timeout: 0, protocolTimeout: 0,
      extraPrefsFirefox: prefs, defaultViewport: { width: 1280, height: 800 },
    });
    return browser;
  }
  version() { return this.engine.version(); }
  async open(url) {
    const page = new FirefoxPage(await this.engine.newPage());
    await page.page.goto(url);
    return page;
  }
  async close() { await this.engine.close(); }
}

// ---- WebKitGTK, over WebDriver, on an X server without a screen

class WebKitPage extends Page {
  constructor(driver, handle) {
    super();
    this.driver = driver;
    this.handle = handle;
    this.errors = [];      // WebDriver reports no errors of a page
  }
  front() { return this.driver.switchTo().window(this.handle); }
  async run(script, ...args) {
    await this.front();
    const { value, error } = await this.driver.executeAsyncScript(`
      const done = arguments[arguments.length - 1];
      Promise.resolve().then(() => (${script})(...arguments[0]))
        .then((value) => done({ value }), (error) => done({ error: String(error) }));`, args);
    if (error) throw new Error(error);
    return value;
  }
  async find(selector) {
    await this.front();
    return this.driver.findElement({ css: selector });
  }
  async click(selector) { await (await this.find(selector)).click(); }
  async type(selector, words) {
    const node = await this.find(selector);
    await node.clear();
    await node.sendKeys(words);
  }
  async press(selector, key) {
    const { Key } = require("selenium-webdriver");
    await (await this.find(selector)).sendKeys(Key[key.toUpperCase()]);
  }
  async reload() {
    await this.front();
    await this.driver.navigate().refresh();
  }
  async close() {
    await this.front();
    await this.driver.close();
  }
}

// Starts a program that ends with its browser, and resolves when isReady(output so far) returns true.
function background(command, args, env, isReady) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe", "pipe"], env: { ...process.env, ...env } });
  child.printed = "";
  return new Promise((go, fail) => {
    const hear = (text) => {
      child.printed += text;
      if (isReady(child.printed)) go(child);
    };
    for (const stream of [child.stdout, child.stderr, child.stdio[3]]) stream.setEncoding("utf8").on("data", hear);
    child.once("close", () => fail(new Error(`${command} ended: ${child.printed}`)));
    child.once("spawn", () => hear(""));
  });
}

export class WebKit {
  static async start() {
    const browser = new WebKit();
    browser.home = mkdtempSync(join(tmpdir(), "moex-webkit-"));
    // Xvfb chooses a display that is free, and writes its number.
    browser.screen = await background(xvfb, ["-displayfd", "3", "-screen", "0", "1280x800x24", "-nolisten", "tcp"], {},
      (text) => /^\d+\n/m.test(text));
    const port = await freePort();
    browser.server = await background(webkit_driver, [`--port=${port}`, "--host=127.0.0.1"], {
      DISPLAY: `:${/^(\d+)\n/m.exec(browser.screen.printed)[1]}`, HOME: browser.home, XDG_RUNTIME_DIR: browser.home,
      WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1", LIBGL_ALWAYS_SOFTWARE: "1",
    }, () => true);
    const { Builder, Capabilities } = require("selenium-webdriver");
    const wanted = new Capabilities({
      browserName: "MiniBrowser",
      "webkitgtk:browserOptions": { binary: mini_browser, args: ["--automation"] },
    });
    for (let attempts = 100; !browser.driver; attempts -= 1) {
      browser.driver = await new Builder().usingServer(`http://127.0.0.1:${port}`).withCapabilities(wanted).build()
        .catch((error) => {
          if (attempts === 0 || !/ECONNREFUSED/.test(String(error))) throw error;
          return new Promise((go) => { setTimeout(go, 100); });
        });
    }
    await browser.driver.manage().setTimeouts({ script: 600000, pageLoad: 600000 });
    return browser;
  }
  async version() {
    const capabilities = await this.driver.getCapabilities();
    return `${capabilities.getBrowserName()} ${capabilities.getBrowserVersion()}`;
  }
  async open(url) {
    if (this.is_used) await this.driver.switchTo().newWindow("tab");
    this.is_used = true;
    await this.driver.get(url);
    return new WebKitPage(this.driver, await this.driver.getWindowHandle());
  }
  async close() {
    await this.driver?.quit().catch(() => {});
    for (const child of [this.server, this.screen]) child?.kill("SIGTERM");
    rmSync(this.home, { recursive: true, force: true, maxRetries: 5 });
  }
}
