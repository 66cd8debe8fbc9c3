// JupyterLab and Notebook 7 load this file as it is: a container of module federation, written by hand, without a build.
// They call init() with the libraries that they share, and get() for our plugins.

(() => {
  const NAME = "data-parallel-workbench";
  const MIME = "application/vnd.workbench.ranks+json"; // see workbench/cluster/output/as_data.py
  const RANKS = "workbench-ranks"; // likewise
  const IN_TAB = "application/vnd.workbench.in-tab+json"; // what only frontends without this extension show
  const VIEW = "application/vnd.jupyter.widget-view+json";
  const SCREEN = 40; // lines of all rows together; of a longer row the beginning and the end are shown, the rest is folded
  let shared;

  /** A library that JupyterLab shares: its newest version there is. */
  async function library(name) {
    const versions = shared[name];
    const newest = Object.keys(versions).sort((a, b) => a.localeCompare(b, undefined, { numeric: true })).pop();
    return (await versions[newest].get())();
  }

  // --- text -----------------------------------------------------------------------------------------

  const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

  /** A terminal's text as nodes; its classes have JupyterLab's colours. Nothing in it becomes markup. */
  function coloured(text) {
    const found = document.createDocumentFragment();
    let classes = [];
    text.split(/\x1b\[([0-9;]*)m/).forEach((part, i) => {
      if (i % 2 === 1) {
        for (const code of part.split(";").map(Number)) {
          if (code === 0) classes = [];
          if (code === 1) classes.push("ansi-bold");
          if (code >= 30 && code <= 37) classes.push(`ansi-${COLOURS[code - 30]}-fg`);
          if (code >= 90 && code <= 97) classes.push(`ansi-${COLOURS[code - 90]}-intense-fg`);
        }
      } else if (part) {
        const span = document.createElement("span");
        span.className = classes.join(" ");
        span.textContent = part;
        found.append(span);
      }
    });
    return found;
  }

  function element(kind, properties = {}, ...children) {
    const made = Object.assign(document.createElement(kind), properties);
    made.append(...children);
    return made;
  }

  function pre(lines, error) {
    const made = element("pre", { className: error ? "wb-err" : "" });
    made.append(coloured(lines.join("\n")));
    return made;
  }

  /** Lines as they stand, or their beginning and end with the rest folded between them. */
  function text(lines, error, who, isOpen, key, most) {
    if (lines.length <= most) return [pre(lines, error)];
    const first = Math.max(2, Math.floor((most - 1) / 2));
    const hidden = lines.slice(first, -first);
    if (!hidden.length) return [pre(lines, error)];
    const details = element("details", {}, element("summary", { textContent: `${hidden.length} more lines of ${who}` }));
    const fill = () => {
      if (details.open && details.children.length === 1) details.append(pre(hidden, error));
      isOpen.set(key, details.open);
    };
    details.open = isOpen.get(key) || false;
    fill();
    details.addEventListener("toggle", fill);
    return [pre(lines.slice(0, first), error), details, pre(lines.slice(-first), error)];
  }

  // --- the output of a cell ---------------------------------------------------------------------------

  let number = 0;

  /** How many lines each row may take: short rows leave theirs to long ones. */
  function share(lengths) {
    let left = SCREEN;
    const sorted = [...lengths].sort((a, b) => a - b);
    for (let i = 0; i < sorted.length; i++) {
      const each = Math.floor(left / (sorted.length - i));
      if (sorted[i] > each) return Math.max(5, each);
      left -= sorted[i];
    }
    return SCREEN;
  }

  /** For the status bar. */
  function announce(panel, data) {
    document.dispatchEvent(new CustomEvent("workbench-ranks", { detail: { ...data, notebook: panel.id } }));
  }

  /** A notebook's ranks, as a comm of its kernel says; they end with that comm, or with the kernel. */
  function announceRanks({ sessionContext, id }) {
    const ended = () => announce({ id }, { ranks: [] });
    const hear = ({ content }) => announce({ id }, { ranks: content.data.ranks, running: false, live: true });
    const follow = comm => Object.assign(comm, { onMsg: hear, onClose: ended });
    const listen = async kernel => {
      kernel.registerCommTarget(RANKS, (comm, opened) => (follow(comm), hear(opened)));
      const { content } = await kernel.requestCommInfo({ target_name: RANKS }); // of a page that was closed
      for (const name of Object.keys(content.comms ?? {})) follow(kernel.createComm(RANKS, name)).send({});
    };
    const begin = kernel => kernel && listen(kernel).catch(error => console.warn("The ranks are not shown:", error));
    begin(sessionContext.session?.kernel);
    sessionContext.kernelChanged.connect((_, { newValue }) => (ended(), begin(newValue)));
    sessionContext.statusChanged.connect((_, status) => /restarting|dead|terminating/.test(status) && ended());
  }

  /** Tabs, one for all ranks and one for each; it keeps the chosen one while the cell runs. */
  function rendererOf(Widget, MimeModel, panel) {
    const { rendermime } = panel.content;
    return class Ranks extends Widget {
      constructor() {
        super();
        this.addClass("wb-ranks");
        this.addClass("jp-RenderedText");
        this.id = `wb-ranks-${number++}`;
        this.chosen = "all";
        this.isOpen = new Map();
        this.parts = [];
        this.widgets = new Map(); // by model: they stay while the text around them changes
        this.tabs = element("div", { className: "wb-tabs", role: "tablist", ariaLabel: "Ranks" });
        this.tabs.addEventListener("keydown", event => this.key(event));
        this.filter = element("input", { type: "search", placeholder: "filter lines", ariaLabel: "Filter lines" });
        this.filter.addEventListener("input", () => this.show());
        this.panel = element("div", { className: "wb-panel", role: "tabpanel", tabIndex: 0, id: `${this.id}-panel` });
        this.note = element("div", { className: "wb-note", role: "status" });
        this.node.append(element("div", { className: "wb-bar" }, this.tabs, this.filter), this.panel, this.note);
      }

      async renderModel(model) {
        this.data = model.data[MIME];
        this.trusted = model.trusted;
        this.note.textContent = this.data.note;
        this.show();
        announce(panel, this.data);
      }

      show() {
        const { ranks, rows } = this.data;
        const own = rows.filter(row => this.chosen === "all" || row.ranks.includes(Number(this.chosen)));
        const lengths = own.map(row => row.items.reduce((n, item) => n + (item.text ?? "").split("\n").length, 0));
        this.node.querySelector(".wb-bar").hidden = ranks.length < 2 || !rows.length;
        this.filter.hidden = lengths.reduce((a, b) => a + b, 0) <= SCREEN && !this.filter.value;
        const names = ["all", ...ranks.map(String)];
        if (this.tabs.children.length !== names.length) {
          this.tabs.replaceChildren(...names.map(name => this.tab(name)));
        }
        for (const tab of this.tabs.children) {
          const chosen = tab.dataset.name === this.chosen;
          tab.setAttribute("aria-selected", chosen);
          tab.tabIndex = chosen ? 0 : -1;
        }
        this.panel.setAttribute("aria-labelledby", `${this.id}-${this.chosen}`);
        const [scrolled, focused] = [this.panel.scrollTop, document.activeElement];
        this.parts.splice(0).forEach(part => part.dispose());
        this.panel.replaceChildren();
        const most = share(lengths);
        own.forEach((row, i) => this.row(row, i, most));
        this.panel.scrollTop = scrolled;
        if (focused !== document.activeElement && this.panel.contains(focused)) focused.focus();
      }

      tab(name) {
        const made = element("button", { type: "button", role: "tab", id: `${this.id}-${name}` });
        made.textContent = name === "all" ? "all ranks" : name;
        made.title = name === "all" ? "Equal lines of ranks together" : `All of rank ${name}`;
        made.dataset.name = name;
        made.setAttribute("aria-controls", `${this.id}-panel`);
        made.addEventListener("click", () => this.choose(name));
        return made;
      }

      choose(name) {
        this.chosen = name;
        this.show();
      }

      key(event) {
        const tabs = [...this.tabs.children];
        const at = tabs.findIndex(tab => tab.dataset.name === this.chosen);
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        const tab = tabs[(to + tabs.length) % tabs.length];
        this.choose(tab.dataset.name);
        tab.focus();
      }

      row(row, i, most) {
        const words = this.filter.value.toLowerCase();
        const made = element("div", { className: "wb-items" });
        row.items.forEach((item, j) => {
          if (item.text === undefined) {
            if (!words) this.bundle(item, made);
            return;
          }
          const lines = item.text.split("\n").filter(line => !words || line.toLowerCase().includes(words));
          if (lines.length) made.append(...text(lines, item.error, row.who, this.isOpen, `${this.chosen}.${i}.${j}`, most));
        });
        if (!made.children.length) return;
        const who = element("b", { textContent: this.chosen === "all" ? row.who : "" });
        this.panel.append(who, made);
      }

      /** A figure, a table, or whatever else JupyterLab can show. */
      bundle(item, host) {
        const widget = item.data[VIEW]?.model_id;
        if (this.widgets.has(widget)) {
          host.append(this.widgets.get(widget).node);
          return;
        }
        const model = new MimeModel({ data: item.data, metadata: item.metadata, trusted: this.trusted });
        const kind = rendermime.preferredMimeType(model.data, this.trusted ? "any" : "ensure");
        if (!kind) return;
        const part = rendermime.createRenderer(kind);
        const place = element("div", {}, part.node);
        host.append(place);
        if (widget) this.widgets.set(widget, { node: place, dispose: () => part.dispose() });
        else this.parts.push(part);
        void part.renderModel(model);
      }

      dispose() {
        [...this.parts.splice(0), ...this.widgets.values()].forEach(part => part.dispose());
        super.dispose();
      }
    };
  }

  /** What is shown elsewhere. */
  function hiddenOf(Widget) {
    return class Hidden extends Widget {
      async renderModel() {
        this.hide();
      }
    };
  }

  /** The output of cells that another page has begun, or this one before it was closed and opened again. */
  function catchUp(panel) {
    const cells = new Map(); // by the request that runs it
    panel.sessionContext.iopubMessage.connect((_, { header, parent_header: parent, content }) => {
      const data = content.data?.[MIME];
      const cell = cells.get(parent.msg_id) ?? panel.content.widgets.find(each => data && each.model.id === data.cell);
      if (!cell?.outputArea || cell.outputArea.future?.msg.header.msg_id === parent.msg_id) return;
      cells.set(parent.msg_id, cell);
      const outputs = cell.outputArea.model;
      const made = { output_type: header.msg_type.replace("update_", ""), ...content };
      if (data) {
        cell.setPrompt("*");
        const all = Array.from({ length: outputs.length }, (_, i) => outputs.get(i).toJSON());
        const at = all.findIndex(each => each.data?.[MIME]);
        if (at < 0) outputs.add(made);
        else outputs.set(at, made);
      } else if (["display_data", "error", "stream"].includes(header.msg_type)) {
        outputs.add(made);
      } else if (content.execution_state === "idle") {
        cell.setPrompt("");
        cells.delete(parent.msg_id);
      }
    });
  }

  // JupyterLab breaks tracebacks amid words, and its dark theme writes their red on a red that is too bright for it.
  const STYLE = `
    .jp-OutputArea-output pre { overflow-wrap: anywhere; word-break: normal; }
    [data-jp-theme-light="false"] { --jp-rendermime-error-background: rgb(244 67 54 / 10%); }
    .wb-ranks { padding: 2px 0; }
    .wb-bar { display: flex; gap: 8px; justify-content: space-between; border-bottom: 1px solid var(--jp-border-color2); }
    .wb-bar[hidden], .wb-bar [hidden] { display: none; }
    .wb-tabs { display: flex; flex-wrap: wrap; }
    .wb-tabs button { background: none; border: 0; border-bottom: 2px solid transparent; color: var(--jp-ui-font-color1);
      cursor: pointer; font: var(--jp-ui-font-size1) var(--jp-ui-font-family); padding: 2px 10px; }
    .wb-tabs button[aria-selected="true"] { border-bottom-color: var(--jp-brand-color1); font-weight: 600; }
    .wb-tabs button:focus-visible, .wb-panel:focus-visible, .wb-bar input:focus-visible {
      outline: 2px solid var(--jp-brand-color1); outline-offset: -2px; }
    .wb-bar input { background: var(--jp-input-background); border: 1px solid var(--jp-border-color1);
      color: var(--jp-ui-font-color0); font-size: var(--jp-ui-font-size1); margin: 1px 0; width: 12em; }
    .wb-panel { display: grid; gap: 2px 12px; grid-template-columns: max-content minmax(0, 1fr);
      max-height: 70vh; overflow: auto; }
    .wb-panel > b { color: var(--jp-ui-font-color1); font: var(--jp-code-font-size) var(--jp-code-font-family);
      line-height: var(--jp-code-line-height); }
    .wb-items { min-width: 0; }
    .wb-items .jp-RenderedHTMLCommon table { margin-left: 0; margin-right: 0; }
    .wb-items pre { overflow-wrap: anywhere; white-space: pre-wrap; }
    .wb-items pre.wb-err { background: var(--jp-rendermime-error-background); }
    .wb-items summary { color: var(--jp-ui-font-color1); cursor: pointer; font-size: var(--jp-ui-font-size1); }
    .wb-note { color: var(--jp-ui-font-color1); font: var(--jp-ui-font-size1) var(--jp-ui-font-family); padding-top: 2px; }
    .wb-note:empty { display: none; }
  `;

  // --- plugins ----------------------------------------------------------------------------------------

  async function plugins() {
    const [{ Widget }, { MimeModel }, { INotebookTracker }] = await Promise.all(
      ["@lumino/widgets", "@jupyterlab/rendermime", "@jupyterlab/notebook"].map(library)
    );
    const ranks = {
      id: `${NAME}:ranks`,
      description: "Shows the output of %%px cells by rank.",
      autoStart: true,
      requires: [INotebookTracker],
      activate: (app, tracker) => {
        document.head.append(element("style", { textContent: STYLE }));
        // For the panel of cluster.watch(): a busy kernel gets no messages of widgets, but it can be interrupted.
        globalThis.workbenchInterrupt = () => app.commands.execute("notebook:interrupt-kernel");
        const add = panel => {
          const Ranks = rendererOf(Widget, MimeModel, panel);
          announceRanks(panel);
          panel.content.rendermime.addFactory(
            { safe: true, mimeTypes: [MIME], createRenderer: () => new Ranks() },
            0
          );
          const Hidden = hiddenOf(Widget);
          const hide = { safe: true, mimeTypes: [IN_TAB], createRenderer: () => new Hidden() };
          panel.content.rendermime.addFactory(hide, -20); // before that of widgets, which is at -10
          catchUp(panel);
        };
        tracker.forEach(add);
        tracker.widgetAdded.connect((_, panel) => add(panel));
      }
    };
    const debugging = await import("./debugger.js")
      .then(found => found.plugins(library, NAME))
      .catch(error => (console.warn("The debugger shows no choice of ranks:", error), []));
    const course = await import("./course.js")
      .then(found => found.plugins(library, NAME))
      .catch(error => (console.warn("The course is not shown:", error), [])); // a frontend may lack what only it needs
    return [ranks, ...debugging, ...course];
  }

  (window._JUPYTERLAB ??= {})[NAME] = {
    init: scope => {
      shared = scope;
    },
    get: async () => {
      const found = await plugins();
      return () => ({ __esModule: true, default: found });
    }
  };
})();
