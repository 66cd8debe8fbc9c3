// The cells of a page, run in the page. A button starts Python (worker.js); then cells have editors and buttons, and
// what they print stands below them. What a reader writes stays in this browser (localStorage), and nowhere else.

(() => {
  const HERE = new URL(".", document.currentScript.src);
  const PAGE = location.pathname.split("/").slice(-2).join("/");
  const TEXTS = `workbench.live:${PAGE}`;
  const PROGRESS = "workbench.live.progress";
  const ENGINES = /^\s*(%%?\w|!\w)|\b(cluster|engines)\.|\bsubprocess\b/m;
  const EXERCISE = /^@exercise\(["']([\w.]+)["']\)/m;
  const LATER = /^(check|show|hint|solution|catch_up|progress|report)\(/m; // is run when somebody asks for it
  const LATE_MS = 2000;
  const HEARD_MS = 8000;

  // --- what is kept ----------------------------------------------------------------------------------------------

  const store = {
    forbidden: false,
    memory: {},
    get(key) {
      try {
        return localStorage.getItem(key);
      } catch {
        this.forbidden = true;
        return this.memory[key] ?? null;
      }
    },
    set(key, text) {
      this.memory[key] = text;
      try {
        localStorage.setItem(key, text);
      } catch {
        this.forbidden = true;
      }
    },
  };

  const texts = {
    all() {
      try {
        return JSON.parse(store.get(TEXTS)) ?? {};
      } catch {
        return {};
      }
    },
    set(cell, text) {
      const all = this.all();
      if (text === cell.original) delete all[cell.number];
      else all[cell.number] = { was: cell.original, text };
      store.set(TEXTS, JSON.stringify(all));
    },
  };

  // --- small parts ------------------------------------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "click") made.addEventListener("click", value);
      else if (value !== false) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  const button = (text, click, title = "") => make("button", { type: "button", click, ...(title && { title }) }, text);

  function download(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  const loaded = {};
  const script = (name) =>
    (loaded[name] ??= new Promise((done, failed) => {
      const made = make("script", { src: new URL(name, HERE).href });
      made.onload = done;
      made.onerror = () => failed(new Error(`${name} was not loaded`));
      document.head.append(made);
    }));

  // --- Python -----------------------------------------------------------------------------------------------------

  const python = {
    worker: null,
    ready: null,
    waiting: null, // the cell that runs
    refuse() {},
    queue: Promise.resolve(),
    asked: 0, // runs that have not ended
    stops: 0, // what was asked for before one is not begun after it

    // Start it; the same promise until it is stopped.
    start() {
      if (this.ready) return this.ready;
      const worker = new Worker(new URL("worker.js", HERE), { type: "module" });
      this.worker = worker;
      this.ready = new Promise((done, failed) => {
        this.refuse = failed;
        worker.onmessage = ({ data }) => {
          if (worker !== this.worker) return;
          if (data.kind === "loading") bar.loading(data.done, data.all);
          else if (data.kind === "ready") done(bar.say("Python is ready."));
          else if (data.kind === "broken") failed(this.broken(data.text));
          else if (data.kind === "ended") this.ended(data);
          else this.waiting?.show(data.kind, data.text);
        };
        worker.onerror = (event) => failed(this.broken(event.message || "the worker ended"));
        // Memory that both see is there on pages that are isolated from other sites.
        this.interrupts = self.crossOriginIsolated ? new Uint8Array(new SharedArrayBuffer(1)) : null;
        const skipped = cells.filter((each) => each.engines).map((each) => each.original);
        worker.postMessage({ kind: "start", kept: store.get(PROGRESS), interrupts: this.interrupts, skipped });
      });
      this.ready.catch(() => {});
      return this.ready;
    },

    // Run text for a cell, after what was asked for before. True if it came to its end.
    run(cell, source, quiet = false, number = cell.number + 1) {
      bar.running(true);
      const { stops } = this;
      const mine = (this.queue = this.queue.then(async () => {
        if (stops !== this.stops) return false;
        this.waiting = cell;
        await this.start();
        bar.running(true);
        return new Promise((done) => {
          this.finish = done;
          this.worker.postMessage({ kind: "run", number, source, quiet });
        });
      }));
      this.asked += 1;
      this.queue = mine.catch(() => {}).then(() => {
        this.waiting = this.finish = null;
        this.asked -= 1;
        if (!this.asked) bar.running(false);
      });
      return mine.catch(() => false);
    },

    ended({ well, kept }) {
      store.set(PROGRESS, kept);
      this.finish?.(well);
    },

    // The worker is of no use any more. What was written stays.
    broken(why) {
      const memory = /memory|allocat|out of bounds/i.test(why);
      const deep = /call stack|recursion/i.test(why);
      const what = memory
        ? "Python has run out of memory: a page has 2 GB."
        : deep
          ? "A function calls itself without end: the browser's stack is full."
          : `Python has stopped: ${why}.`;
      this.end(`${what} Your text is kept. Run a cell to start Python again.`);
      return new Error(why);
    },

    // Ctrl-C, if it can be said; where it cannot, or is not heard, the worker is ended.
    stop() {
      const text = "Stopped. Names that cells had defined are gone; your text is kept.";
      const { finish } = this;
      this.stops += 1;
      if (!this.interrupts || !finish) return this.end(text);
      this.interrupts[0] = 2;
      setTimeout(() => finish === this.finish && this.end(text), HEARD_MS);
    },

    end(text) {
      this.stops += 1;
      this.worker?.terminate();
      this.worker = this.ready = null;
      this.refuse(new Error(text)); // who waits for it to start
      for (const cell of cells) cell.ran = false;
      this.waiting?.show("error", text);
      this.finish?.(false);
      bar.say(text);
    },
  };

  // --- the bar at the top -----------------------------------------------------------------------------------------

  const bar = {
    build() {
      this.text = make("span", { class: "wb-live-said", role: "status" });
      this.progress = make("progress", { hidden: "", "aria-label": "Loading Python" });
      this.begin = button("Run this page in your browser", () => begin().catch(() => {}));
      this.stop = button("Stop", () => python.stop());
      this.stop.hidden = true;
      this.more = make(
        "span",
        { class: "wb-live-more", hidden: "" },
        button("Download my notebook", notebook, "with what you wrote; `workbench grade` accepts it"),
        button("Download my progress", () => download("progress.json", store.get(PROGRESS) ?? "{}")),
      );
      const about = " Python and the course are loaded from this site, about 10 MB, once. Nothing is installed.";
      this.element = make("div", { class: "wb-live-bar", role: "region", "aria-label": "Python in this page" });
      this.element.append(this.begin, this.stop, this.more, this.progress, this.text);
      this.say(about);
      (document.querySelector(".wb-run") ?? document.querySelector("h1")).after(this.element);
    },
    say(text) {
      this.text.textContent = text;
      this.progress.hidden = true;
    },
    loading(done, all) {
      this.progress.hidden = false;
      this.progress.max = all;
      this.progress.value = done;
      const mb = (bytes) => (bytes / 1e6).toFixed(1);
      this.text.textContent = done < all ? `${mb(done)} of ${mb(all)} MB` : "Python is starting …";
    },
    running(is) {
      this.stop.hidden = !is;
    },
  };

  // --- cells ------------------------------------------------------------------------------------------------------

  class Cell {
    constructor(element, number) {
      this.element = element;
      this.number = number;
      this.input = element.querySelector(".cell_input");
      this.original = this.input.querySelector("pre").textContent.replace(/\n$/, "");
      this.recorded = element.querySelector(".cell_output");
      this.form = Boolean(element.querySelector("[data-predict], [data-reveal]")); // the page has a form of its own
      this.engines = ENGINES.test(this.original);
      this.exercise = EXERCISE.exec(this.original)?.[1];
      this.ran = false;
      this.editor = null;
      this.out = make("div", { class: "wb-live-out" });
    }

    get text() {
      return this.editor ? this.editor.text : this.original;
    }

    // Give it an editor and buttons; a cell that needs engines, a note.
    open(kept) {
      if (this.engines) {
        const note = "This cell needs more than a browser: run it in a notebook on your computer.";
        this.input.after(make("p", { class: "wb-live-note" }, note, this.recorded ? " Its recorded output stands below." : ""));
        return;
      }
      if (this.form) return;
      const place = make("div", { class: "wb-live-editor" });
      this.input.hidden = true;
      const buttons = make("div", { class: "wb-live-buttons" }, button("Run", () => this.run(), "Shift+Enter"));
      const name = this.exercise;
      if (name) {
        const ask = (verb) => button(verb[0].toUpperCase() + verb.slice(1), () => this.ask(verb));
        buttons.append(ask("check"), ask("show"), ask("hint"), ask("solution"));
      }
      buttons.append(button("Reset", () => this.reset(), "the text as it was"));
      this.input.after(place, buttons, this.out);
      this.editor = window.wbEditor.make(place, {
        text: kept?.text ?? this.original,
        label: name ? `Exercise ${name}` : `Cell ${this.number + 1}`,
        change: (text) => texts.set(this, text),
        run: () => this.run(),
      });
    }

    // Run it, after the cells above that have not run.
    async run() {
      const { stops } = python;
      for (const each of cells.slice(0, this.number)) {
        if (stops !== python.stops) return false;
        if (!each.ran && !each.engines && !LATER.test(each.text)) await each.alone();
      }
      return stops === python.stops && this.alone();
    }

    async alone() {
      this.clear();
      this.ran = true;
      const well = await python.run(this, this.text, this.form);
      this.end();
      return well || Boolean(this.exercise);
    }

    // check, show, hint or solution of an exercise, with what stands in its cell now.
    async ask(verb) {
      if (!(await this.run())) return;
      const asked = `from workbench.course.exercise import ${verb}\n${verb}("${this.exercise}")`;
      await python.run(this, asked, false, 0); // no cell's number: the cell's own lines are still asked for
      this.end();
    }

    reset() {
      this.editor.text = this.original;
      this.clear();
    }

    clear() {
      this.out.replaceChildren();
      if (this.recorded && !this.form) this.recorded.hidden = true;
      clearTimeout(this.late);
      this.late = setTimeout(() => {
        this.waits ??= make("p", { class: "wb-live-note", role: "status" }, "… still running. Stop ends it.");
        this.out.append(this.waits);
      }, LATE_MS);
    }

    end() {
      clearTimeout(this.late);
      this.waits?.remove();
      const nothing = !this.out.querySelector(":not(.wb-live-error)"); // then the recorded output is better than none
      if (this.recorded && nothing && this.out.children.length) this.recorded.hidden = false;
    }

    show(kind, text) {
      const note = this.waits?.isConnected ? this.waits : null; // it stays below what comes
      if (kind === "html") {
        const place = make("div", { class: "wb-live-html" });
        place.innerHTML = text;
        this.out.insertBefore(place, note);
        place.querySelectorAll("[data-player]").forEach(window.wbPlay);
        return;
      }
      const last = note ? note.previousElementSibling : this.out.lastElementChild;
      const wanted = kind === "error" ? "wb-live-error" : "wb-live-text";
      if (last?.className === wanted) last.append(text);
      else this.out.insertBefore(make("pre", { class: wanted, ...(kind === "error" && { role: "alert" }) }, text), note);
    }
  }

  let cells = [];
  let opened = null;

  // Editors with what the reader has written; Python starts with the first cell that runs.
  async function open() {
    await script("codemirror.js");
    const kept = texts.all();
    for (const cell of cells) cell.open(kept[cell.number]);
  }

  async function begin() {
    if (bar.begin.hidden) return;
    bar.begin.hidden = true;
    bar.more.hidden = false;
    bar.say("Loading …");
    try {
      await (opened ??= open());
    } catch (error) {
      opened = null;
      bar.begin.hidden = false;
      bar.say(`${error.message}. Is the site still there? Try again.`);
      return;
    }
    await python.start();
    if (store.forbidden) bar.say("Python is ready. This browser keeps nothing: download your notebook before you leave.");
  }

  // The notebook of this page with what stands in its cells.
  async function notebook() {
    const [kind, file] = PAGE.split("/");
    const name = `${file.replace(/\.html$/, "")}.ipynb`;
    try {
      const link = document.querySelector(`.wb-run a[href$="${name}"]`);
      const found = await (await fetch(link.href)).json();
      const code = found.cells.filter((each) => each.cell_type === "code");
      if (code.length !== cells.length) throw new Error("its cells are others than those of this page");
      code.forEach((each, i) => Object.assign(each, { source: cells[i].text, outputs: [], execution_count: null }));
      download(name, JSON.stringify(found, null, 1));
    } catch (error) {
      bar.say(`The notebook ${kind}/${name} was not made: ${error.message}.`);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const found = [...document.querySelectorAll(".cell")].filter((each) => each.querySelector(".cell_input pre"));
    if (!found.length || location.protocol === "file:") return;
    cells = found.map((element, number) => new Cell(element, number));
    bar.build();
    const lacks = [
      typeof WebAssembly === "object" && WebAssembly.Suspending ? "" : "WebAssembly that can switch stacks",
      typeof DecompressionStream === "function" ? "" : "DecompressionStream",
    ].filter(Boolean);
    if (!lacks.length && Object.keys(texts.all()).length) (opened = open()).catch(() => (opened = null));
    if (lacks.length) {
      bar.begin.hidden = true;
      bar.say(`This browser has no ${lacks.join(" and no ")}, so cells cannot run here. Take Chrome, Edge or Firefox in a new version, or your computer.`);
    }
  });
})();
