// A Dedicated Worker of a test's own beside the modules of /wasm, in a page of the hub: stories of one module take no
// model.

// Opens a page at `hub` whose worker runs the text `program`. Resolves to {context, page, asked}, where `asked` has the
// paths of all requests. In the page, tell(message) posts to the worker, and say(message) resolves to its next message
// without `report`; lastReport() is the last report.
export async function openTestWorker(t, browser, hub, program) {
  const context = await browser.newContext();
  t.after(() => context.close());
  context.setDefaultTimeout(0);
  await context.route("**/wasm/test_pages.js", (route) => route.fulfill({
    contentType: "text/javascript", body: program,
    headers: { "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin" },
  }));
  const asked = [];
  context.on("request", (request) => asked.push(new URL(request.url()).pathname));
  const page = await context.newPage();
  await page.goto(`${hub.url}/status.html`);
  await page.evaluate(() => {
    const worker = new Worker("wasm/test_pages.js", { type: "module" });
    let report = null, answered = () => {};
    worker.onmessage = ({ data }) => {
      if (data.report) report = data.report;
      else answered(data);
    };
    worker.onerror = (event) => answered({ error: event.message });
    globalThis.lastReport = () => report;
    globalThis.tell = (message) => worker.postMessage(message);
    globalThis.say = (message) => new Promise((answer) => {
      answered = answer;
      worker.postMessage(message);
    });
  });
  return { context, page, asked };
}
