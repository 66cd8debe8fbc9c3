// The panel of cluster.watch(): a row for each rank, two sparklines in it; a click on a row shows where it and those stand
// for whom it waits.

const HEAD = ["rank", "state", "since, for", "step", "loss", "s/step", "GB/s", "cores", "MB", "cores and GB/s, last minute"];

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
    row.rank,
    row.state,
    row.detail,
    step ? step[1] : "",
    row.loop.loss === undefined ? "" : row.loop.loss.toPrecision(4),
    row.step_s === null ? "" : row.step_s.toFixed(3),
    row.gb_s.toFixed(3),
    row.cpu.toFixed(1),
    Math.round(row.memory / 1e6)
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

  function rows() {
    const focused = document.activeElement?.dataset?.rank;
    body.replaceChildren(
      ...model.get("rows").map(row => {
        const made = element("tr", { className: `wb-${row.state}` });
        cells(row).forEach((text, i) => {
          const cell = element(i ? "td" : "th", { textContent: i ? text : "" });
          if (i === 0) {
            cell.scope = "row";
            const opens = button(String(row.rank), "Show where it is", () => {
              open = open === row.rank ? null : row.rank;
              lines();
            });
            opens.dataset.rank = row.rank;
            opens.setAttribute("aria-expanded", open === row.rank);
            cell.append(opens);
          }
          if (i >= 3) cell.className = "wb-number";
          made.append(cell);
        });
        made.append(
          element("td", {}, sparkline(row.history.cpu, "cores"), sparkline(row.history.gb_s, "GB per second"))
        );
        return made;
      })
    );
    if (focused !== undefined) body.querySelector(`[data-rank="${focused}"]`)?.focus();
    note.textContent = model.get("note");
    lines();
  }

  const head = element("tr", {}, ...HEAD.map(text => element("th", { textContent: text, scope: "col" })));
  const table = element("table", {}, element("thead", {}, head), body);
  el.classList.add("wb-panel-root");
  el.append(bar, table, note, detail, said);
  model.on("change:rows", rows);
  model.on("change:said", () => (said.textContent = model.get("said")));
  rows();
}

export default { render };
