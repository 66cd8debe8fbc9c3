// Pyodide and the course, out of the site's own folder: for the worker of a page, and for the kernel of a notebook.

const HERE = new URL("./runtime/", import.meta.url);
const PREFIX = "workbench-live-";

// Pyodide asks for its files by fetch: they come out of the browser's cache, or from the site, some of them compressed,
// and their bytes are counted.
async function ownFetch(sizes, cache, send) {
  const all = Object.values(sizes).reduce((sum, each) => sum + each, 0);
  const fetched = self.fetch.bind(self);
  let done = 0;
  return async (asked, options) => {
    const url = new URL(asked.url ?? asked, HERE);
    const name = url.pathname.slice(url.pathname.lastIndexOf("/") + 1);
    const packed = !(name in sizes) && `${name}.gz` in sizes;
    if (!(name in sizes) && !packed) return fetched(asked, options);
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

// Start Python, with a part of what files.json names: "page", or what a "kernel" needs besides.
//
// send: called as send("loading", {done, all}) with bytes.
export async function load({ parts, archives, env }, send = () => {}) {
  const answer = await fetch(new URL("files.json", HERE), { cache: "no-cache" });
  if (!answer.ok) throw new Error(`files.json: the site answers ${answer.status}`);
  const files = await answer.json();
  const sizes = Object.assign({}, ...parts.map((each) => files[each].sizes));
  self.fetch = await ownFetch(sizes, await openCache(files.version), send);
  // A module's imports do not go through fetch, so what is compressed is imported from memory.
  const script = await (await self.fetch(new URL("pyodide.asm.js", HERE))).blob();
  await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const { loadPyodide } = await import(new URL("pyodide.mjs", HERE));
  const [python, ...own] = await Promise.all([
    loadPyodide({
      indexURL: HERE.href,
      packages: parts.flatMap((each) => files[each].packages),
      enableRunUntilComplete: true,
      env: { HOME: "/home/pyodide", ...env },
    }),
    ...archives.map(async (name) => (await self.fetch(new URL(name, HERE))).arrayBuffer()),
  ]);
  for (const each of own) python.unpackArchive(each, "zip");
  return python;
}
