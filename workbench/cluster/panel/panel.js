// The panel of cluster.watch(): a row for each rank, two sparklines in it; a click on a row shows where it and those stand
// for whom it waits.

const HEAD = ["rank", "state", "since, for", "step", "loss", "s/step", "GB/s", "cores", "MB", "GPU %", "GPU MB", "cores and GB/s, last minute"];
const SILENT_S = 5; // the kernel says something twice a second

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

/** The last minute as a line; its largest value is its full height. */
function sparkline(values, label) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 60 14");
  svg.setAttribute("class", "wb-spark");
  svg.setAttribute("role", "img");
  const most = Math.max(...values, 1e-9);
  svg.setAttribute("aria-label", `${label}, last ${values.length} seconds, at most ${most.toPrecision(2)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const from = 60 - values.length;
  line.setAttribute("points", values.map((value, i) => `${from + i},${13 - (12 * value) / most}`).join(" "));
  svg.append(line);
  return svg;
}

function cells(row) {
  const step = Object.entries(row.loop).find(([name]) => name !== "loss");
  return [
    row.state,
    row.detail,
    step ? step[1] : "",
    row.loop.loss === undefined ? "" : row.loop.loss.toPrecision(4),
    row.step_s === null ? "" : row.step_s.toFixed(3),
    row.gb_s.toFixed(3),
    row.cpu.toFixed(1),
    Math.round(row.memory / 1e6),
    row.gpu?.percent ?? "",
    row.gpu ? Math.round(row.gpu.memory / 1e6) : ""
  ];
}

function render({ model, el }) {
  let open = null; // the rank whose lines are shown
  const body = element("tbody");
  const note = element("div", { className: "wb-panel-note" });
  const said = element("div", { className: "wb-panel-said", role: "status" });
  const detail = element("pre", { className: "wb-panel-detail", hidden: true, tabIndex: 0 });
  const press = content => model.send(content);
  const button = (text, title, does) => {
    const made = element("button", { type: "button", textContent: text, title });
    made.addEventListener("click", does);
    return made;
  };
  const bar = element(
    "div",
    { className: "wb-panel-bar" },
    button("interrupt", "As Ctrl-C on all ranks that run a cell", () => {
      const ours = globalThis.workbenchInterrupt; // a kernel that runs a cell gets no message of a widget
      if (ours) ours();
      press({ press: "interrupt" });
    }),
    button("rescue", "Bring the ranks back: as cluster.rescue()", () => press({ press: "rescue" })),
    button("close", "Watch no more", () => {
      press({ press: "stop" });
      clearInterval(watch);
      el.replaceChildren();
    })
  );

  function lines() {
    const row = model.get("rows").find(each => each.rank === open);
    detail.hidden = !row;
    if (!row) return;
    const at = each => `rank ${each.rank} ${each.state} ${each.detail}\n    ${each.line || "(no line)"}`;
    const others = model.get("rows").filter(each => row.missing.includes(each.rank));
    const stack = model.get("stacks")[open];
    const parts = [at(row), ...others.map(at)];
    if (stack) parts.push(`stack of rank ${open}:\n${stack}`);
    detail.textContent = parts.join("\n");
  }

  /** A row that stays, and whose texts change: so its button can be pressed at any time. */
  function rowOf(rank) {
    const opens = button(String(rank), "Show where it is", () => {
      open = open === rank ? null : rank;
      rows();
    });
    const name = element("th", { scope: "row" }, opens);
    const texts = HEAD.slice(1, -1).map((_, i) => element("td", { className: i >= 2 ? "wb-number" : "" }));
    const sparks = element("td");
    const node = element("tr", {}, name, ...texts, sparks);
    let kept;
    const update = row => {
      node.className = `wb-${row.state}`;
      opens.setAttribute("aria-expanded", open === rank);
      cells(row).forEach((text, i) => {
        if (texts[i].textContent !== String(text)) texts[i].textContent = text;
      });
      const history = model.get("history")[rank];
      if (!history || history === kept) return;
      kept = history;
      sparks.replaceChildren(sparkline(history.cpu, "cores"), sparkline(history.gb_s, "GB per second"));
    };
    return { node, update };
  }

  const known = new Map();
  function rows() {
    const all = model.get("rows");
    for (const row of all) if (!known.has(row.rank)) known.set(row.rank, rowOf(row.rank));
    const nodes = all.map(row => known.get(row.rank).node);
    if (nodes.length !== body.children.length || nodes.some((node, i) => body.children[i] !== node)) body.replaceChildren(...nodes);
    all.forEach(row => known.get(row.rank).update(row));
    table.classList.toggle("wb-no-gpu", !all.some(row => row.gpu));
    if (!lost) note.textContent = model.get("note");
    lines();
  }

  /** A kernel that is restarted or gone says nothing more, not even that. */
  let lost = false;
  let heard = Date.now();
  const alive = () => {
    heard = Date.now();
    lost = false;
    note.textContent = model.get("note");
    el.classList.toggle("wb-old", model.get("ended"));
  };
  const watch = setInterval(() => {
    const silent = Math.round((Date.now() - heard) / 1000);
    lost = !model.get("ended") && silent >= SILENT_S;
    if (!lost) return;
    el.classList.add("wb-old");
    note.textContent = `No news for ${silent} s. If the kernel was restarted or has ended, call cluster.up() and cluster.watch() again.`;
  }, 1000);

  const head = element("tr", {}, ...HEAD.map(text => element("th", { textContent: text, scope: "col" })));
  const table = element("table", {}, element("thead", {}, head), body);
  el.classList.add("wb-panel-root");
  el.append(bar, table, note, detail, said);
  model.on("change:rows change:history", rows);
  model.on("change:beat change:note change:ended", alive);
  model.on("change:said", () => (said.textContent = model.get("said")));
  rows();
  alive();
  return () => clearInterval(watch);
}

export default { render };
