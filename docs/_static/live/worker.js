// Python for the cells of a page, in a worker: so the page stays alive, and can end it.
//
// The page sends {kind: "start", kept, interrupts, skipped} and {kind: "run", number, source, quiet}; it gets {kind:
// "loading", done, all}, {kind: "ready"}, {kind: "text" | "html" | "error", text}, {kind: "ended", well, kept} and
// {kind: "broken", text}.

import { load } from "./runtime.js";

const send = (kind, more = {}) => self.postMessage({ kind, ...more });
const loaded = new Set(); // packages that cells have asked for
let session;

async function start(kept, interrupts) {
  const python = await load({ parts: ["page"], archives: ["workbench.zip"], env: { MPLBACKEND: "svg" } }, send); // it has no screen
  if (interrupts) python.setInterruptBuffer(interrupts);
  const module = python.pyimport("workbench.course.browser.session");
  if (kept) module.restore(kept);
  const made = module.Session((kind, words) => send(kind, { text: words }));
  session = { python, module, made };
}

async function run({ number, source, quiet }) {
  const { python, module, made } = session;
  const globals = python.toPy({ session: made, source, quiet: Boolean(quiet), number });
  let well;
  for (;;) {
    try {
      well = await python.runPythonAsync("session.run(source, quiet, number)", { globals });
      break;
    } catch (error) {
      const name = /ModuleNotFoundError: No module named '(\w+)/.exec(error.message)?.[1];
      if (!name || loaded.has(name)) throw error;
      send("text", { text: `Loading ${name} …\n` });
      loaded.add(name);
      await python.loadPackage(name, { messageCallback() {}, errorCallback() {} });
    }
  }
  send("ended", { well, kept: module.state() });
}

self.onmessage = async ({ data }) => {
  try {
    if (data.kind === "start") {
      await start(data.kept, data.interrupts);
      for (const source of data.skipped) session.made.skip(source);
      send("ready");
    } else {
      await run(data);
    }
  } catch (error) {
    send("broken", { text: String(error?.message ?? error).trim().split("\n").at(-1) });
  }
};
