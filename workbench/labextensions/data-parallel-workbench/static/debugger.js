// The choice of a rank in JupyterLab's debugger, above its call stack. extension.js loads this file.

const RANKS = "workbenchRanks"; // the command and the event of workbench/cluster/debugger.py

const STYLE = `
  .wb-debugged { align-items: center; border-bottom: 1px solid var(--jp-border-color2); color: var(--jp-ui-font-color1);
    display: flex; flex-wrap: wrap; font: var(--jp-ui-font-size1) var(--jp-ui-font-family); gap: 4px 12px; padding: 4px 8px; }
  .wb-debugged[hidden] { display: none; }
  .wb-debugged select { background: var(--jp-layout-color1); border: 1px solid var(--jp-border-color1);
    color: var(--jp-ui-font-color0); font: inherit; }
  .wb-debugged label { align-items: center; display: flex; gap: 4px; }
`;

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

/** Which of the ranks that stand is looked at, and whether the buttons are for it alone. */
function choice(service) {
  const ranks = element("select", { ariaLabel: "Rank to look at" });
  const alone = element("input", { type: "checkbox" });
  const node = element(
    "div",
    { className: "wb-debugged", role: "group", ariaLabel: "Ranks that the debugger has stopped", hidden: true },
    ranks,
    element("label", { title: "Step and Continue are for this rank; else for all that stand" }, alone, "this rank alone")
  );
  const show = state => {
    node.hidden = !state?.stopped?.length;
    if (node.hidden) return;
    ranks.replaceChildren(...state.stopped.map(rank => element("option", { value: rank, textContent: `rank ${rank}` })));
    ranks.value = state.rank;
    alone.checked = state.alone;
  };
  const ask = words => service.session?.sendRequest(RANKS, words).then(reply => show(reply.body), () => show(null));
  ranks.addEventListener("change", () => ask({ rank: Number(ranks.value) }));
  alone.addEventListener("change", () => ask({ alone: alone.checked }));
  service.eventMessage.connect((_, message) => message.event === RANKS && show(message.body));
  service.sessionChanged.connect(() => show(null));
  service.model.callstack.framesChanged.connect((_, frames) => {
    if (node.hidden && frames[0]?.name.startsWith("rank ")) void ask({}); // the page is new, and the ranks stand
  });
  service.stopped?.connect(() => show(null));
  return node;
}

export async function plugins(library, extension) {
  const [{ IDebugger, IDebuggerSidebar }, { Widget }] = await Promise.all(
    ["@jupyterlab/debugger", "@lumino/widgets"].map(library)
  );
  return [
    {
      id: `${extension}:debugger`,
      description: "The choice of a rank in the debugger.",
      autoStart: true,
      requires: [IDebugger],
      optional: [IDebuggerSidebar],
      activate: (app, service, sidebar) => {
        if (!sidebar) return;
        document.head.append(element("style", { textContent: STYLE }));
        sidebar.callstack.insertWidget(0, new Widget({ node: choice(service) }));
      }
    }
  ];
}
