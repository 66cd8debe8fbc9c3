// Python for the cells of a page, in a worker: so the page stays alive, and can end it.
//
// The page sends {kind: "start", kept, interrupts, skipped} and {kind: "run", number, source, quiet}; it gets {kind:
// "loading", done, all}, {kind: "ready"}, {kind: "text" | "html" | "error", text}, {kind: "ended", well, kept} and
// {kind: "broken", text}.

const HERE = new URL("./runtime/", self.location.href);
const PREFIX = "workbench-live-";
const send = (kind, more = {}) => self.postMessage({ kind, ...more });
const loaded = new Set(); // packages that cells have asked for
let session;

// Pyodide asks for its files by fetch: they come out of the browser's cache, or from the site, some of them compressed,
// and their bytes are counted.
async function ownFetch(files, cache) {
  const all = Object.values(files.sizes).reduce((sum, each) => sum + each, 0);
  const fetched = self.fetch.bind(self);
  let done = 0;
  return async (asked, options) => {
    const url = new URL(asked.url ?? asked, HERE);
    const name = url.pathname.slice(url.pathname.lastIndexOf("/") + 1);
    const packed = !(name in files.sizes) && `${name}.gz` in files.sizes;
    if (!(name in files.sizes) && !packed) return fetched(asked, options);
    const from = packed ? `${url.href}.gz` : url.href;
    let answer = await cache?.match(from);
    if (!answer) {
      answer = await fetched(from);
      if (!answer.ok) throw new Error(`${name}: the site answers ${answer.status}`);
      if (cache) await cache.put(from, answer.clone()).catch(() => {}); // no room: then without
    }
    const counting = new TransformStream({
      transform(part, controller) {
        done += part.byteLength;
        send("loading", { done: Math.min(done, all), all });
        controller.enqueue(part);
      },
    });
    let body = answer.body.pipeThrough(counting);
    if (packed) body = body.pipeThrough(new DecompressionStream("gzip"));
    const type = name.endsWith(".wasm") ? "application/wasm" : name.endsWith("js") ? "text/javascript" : "application/octet-stream";
    return new Response(body, { headers: { "Content-Type": type } });
  };
}

// What was loaded before stays in the browser, until the site has other files.
async function openCache(version) {
  try {
    const name = PREFIX + version;
    for (const each of await caches.keys()) if (each.startsWith(PREFIX) && each !== name) await caches.delete(each);
    return await caches.open(name);
  } catch {
    return undefined; // private windows, and pages without a secure origin
  }
}

async function start(kept, interrupts) {
  const answer = await fetch(new URL("files.json", HERE), { cache: "no-cache" });
  if (!answer.ok) throw new Error(`files.json: the site answers ${answer.status}`);
  const files = await answer.json();
  self.fetch = await ownFetch(files, await openCache(files.version));
  // A module's imports do not go through fetch, so what is compressed is imported from memory.
  const script = await (await self.fetch(new URL("pyodide.asm.js", HERE))).blob();
  await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const { loadPyodide } = await import(new URL("pyodide.mjs", HERE));
  const [python, own] = await Promise.all([
    loadPyodide({
      indexURL: HERE.href,
      packages: files.packages,
      enableRunUntilComplete: true,
      env: { HOME: "/home/pyodide", MPLBACKEND: "svg" }, // a worker has no screen
    }),
    self.fetch(new URL("workbench.zip", HERE)).then((each) => each.arrayBuffer()),
  ]);
  python.unpackArchive(own, "zip");
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
