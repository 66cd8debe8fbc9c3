// The course in JupyterLab as `make lab` starts it: a side bar with the lessons and the learner's progress, a welcome page,
// and the state of the ranks in the status bar. extension.js loads this file.

const SOLVED = "✓";
const OPEN = "–";

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function button(text, act, className = "wb-link") {
  const made = element("button", { type: "button", className, textContent: text });
  made.addEventListener("click", act);
  return made;
}

// --- what the learner has, and what is done ------------------------------------------------------------

/** The lessons, the learner's copies of them, and how far the learner is. */
class Course {
  constructor({ lessons, two_hours }, folder, contents) {
    this.lessons = lessons;
    this.twoHours = lessons.filter(lesson => two_hours.includes(number(lesson)));
    this.folder = folder;
    this.contents = contents;
    this.progress = {};
    this.states = {}; // by kind: which state of a lesson was copied, and which is published
    this.read = new Set(); // lessons without exercises whose last cell has run
    this.watchers = new Set();
  }

  path(kind, lesson) {
    return `${this.folder}/${kind}/${lesson.stem}.ipynb`;
  }

  isSolved(exercise) {
    const entry = this.progress[exercise.name];
    return Boolean(entry?.passed && (entry.cause || !exercise.asks_cause));
  }

  isNewer(kind, lesson) {
    const state = this.states[kind]?.[lesson.stem];
    return Boolean(state && state.copied !== state.published);
  }

  /** A new copy of a lesson was taken. */
  async taken(kind, lesson) {
    const state = this.states[kind]?.[lesson.stem];
    if (!state) return;
    state.copied = state.published;
    const content = JSON.stringify(this.states[kind], null, 1);
    await this.contents.save(`${this.folder}/${kind}/.workbench/lessons.json`, { type: "file", format: "text", content });
  }

  solved(lesson) {
    return lesson.exercises.filter(exercise => this.isSolved(exercise)).length;
  }

  isFinished(lesson) {
    return lesson.exercises.length ? this.solved(lesson) === lesson.exercises.length : this.read.has(lesson.stem);
  }

  /** The first lesson that is not finished. */
  next() {
    return this.lessons.find(lesson => !this.isFinished(lesson));
  }

  /** Read the learner's files; what is not there or damaged counts as nothing done. */
  async refresh() {
    const get = (path, options) => this.contents.get(path, options).then(found => found.content, () => undefined);
    const files = ["notebooks", "exercises"].map(kind => `${this.folder}/${kind}/.workbench/progress.json`);
    const found = await Promise.all(files.map(path => get(path, { type: "file", format: "text", content: true })));
    this.progress = Object.assign({}, ...found.map(parsed));
    for (const kind of ["notebooks", "exercises"]) {
      const path = `${this.folder}/${kind}/.workbench/lessons.json`;
      this.states[kind] = parsed(await get(path, { type: "file", format: "text", content: true }));
    }
    for (const lesson of this.lessons.filter(each => !each.exercises.length && !this.read.has(each.stem))) {
      const code = (await get(this.path("notebooks", lesson)))?.cells?.filter(cell => cell.cell_type === "code") ?? [];
      if (code.at(-1)?.execution_count) this.read.add(lesson.stem);
    }
    this.watchers.forEach(watcher => watcher());
  }
}

function number(lesson) {
  return lesson.stem.slice(0, 2);
}

function name(lesson) {
  return `${number(lesson)} ${lesson.title}`;
}

function parsed(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

/** A notebook's content as if none of its cells had run; copies.py does the same at the start. */
function withoutOutputs(content) {
  for (const cell of content.cells) {
    if (cell.cell_type === "code") Object.assign(cell, { outputs: [], execution_count: null });
  }
  delete content.metadata.widgets;
  return content;
}

// --- the side bar ------------------------------------------------------------------------------------------

/** One lesson: its title opens it, and below are its exercises. `update` writes what has changed into the same nodes. */
function row(course, lesson, actions) {
  const minutes = element("span", { className: "wb-minutes", textContent: `${lesson.minutes} min`, title: "for one who reads and works alone" });
  const title = button(name(lesson), () => actions.open("notebooks", lesson), "wb-title");
  const exercises = lesson.exercises.map(exercise => {
    const mark = element("span", { className: "wb-mark" });
    const open = button(exercise.title, () => actions.open("exercises", lesson, exercise));
    const update = () => {
      const solved = course.isSolved(exercise);
      mark.textContent = solved ? SOLVED : OPEN;
      open.ariaLabel = `${exercise.title}: ${solved ? "solved" : "open"}`;
    };
    return { node: element("li", {}, mark, open), update };
  });
  const summary = element("summary");
  const details = element("details", {}, summary);
  if (exercises.length) {
    details.append(element("ul", {}, ...exercises.map(exercise => exercise.node)));
  }
  const news = [];
  const kinds = exercises.length ? ["notebooks", "exercises"] : ["notebooks"];
  for (const kind of kinds) {
    const what = kind === "notebooks" ? "lesson" : "exercises";
    const reset = button(`Reset my copy of the ${what}`, () => actions.reset(kind, lesson));
    reset.ariaLabel = `Reset my copy of the ${what}: ${name(lesson)}`;
    const newer = element("p", { className: "wb-newer", textContent: `Newer than your copy: the ${what}. Reset takes the new one.` });
    details.append(newer, reset);
    news.push(() => (newer.hidden = !course.isNewer(kind, lesson)));
  }
  const node = element("li", { className: "wb-lesson" }, title, minutes, details);
  const update = () => {
    const next = course.next() === lesson;
    node.classList.toggle("wb-next", next);
    node.classList.toggle("wb-finished", course.isFinished(lesson));
    if (next) title.setAttribute("aria-current", "step");
    else title.removeAttribute("aria-current");
    const done = course.isFinished(lesson) ? `${SOLVED} ` : "";
    summary.textContent = exercises.length
      ? `${done}${course.solved(lesson)} of ${exercises.length} solved`
      : `${done}no exercises`;
    if (kinds.some(kind => course.isNewer(kind, lesson))) summary.textContent += " · newer than your copy";
    news.forEach(update => update());
    exercises.forEach(exercise => exercise.update());
  };
  return { node, update };
}

function sideBar(course, actions) {
  const begin = button("", () => actions.open("notebooks", course.next() ?? course.lessons[0]), "wb-begin");
  const bar = element("progress", { ariaLabel: "Exercises solved" });
  const count = element("span", { role: "status" });
  const rows = course.lessons.map(lesson => row(course, lesson, actions));
  const all = course.lessons.flatMap(lesson => lesson.exercises);
  const refresh = button("Refresh", () => course.refresh());
  const welcome = button("Welcome page", () => actions.welcome());
  const update = () => {
    const solved = all.filter(exercise => course.isSolved(exercise)).length;
    Object.assign(bar, { max: all.length, value: solved });
    count.textContent = `${solved} of ${all.length} exercises solved`;
    begin.textContent = beginText(course);
    rows.forEach(each => each.update());
  };
  course.watchers.add(update);
  update();
  return element(
    "div",
    { className: "wb-course" },
    element("div", { className: "wb-head" }, element("h2", { textContent: "Course" }), bar, element("div", {}, count, refresh), begin),
    element("ol", {}, ...rows.map(each => each.node)),
    element("div", { className: "wb-foot" }, welcome)
  );
}

function beginText(course) {
  const next = course.next();
  if (!next) return "All is done. Again from the beginning";
  return next === course.lessons[0] ? `Begin here: ${name(next)}` : `Go on here: ${name(next)}`;
}

// --- the welcome page ----------------------------------------------------------------------------------------

function paragraph(...children) {
  return element("p", {}, ...children);
}

function code(text) {
  return element("code", { textContent: text });
}

function welcomePage(course, actions) {
  const open = (lesson, text) => button(text, () => actions.open("notebooks", lesson));
  const numbers = lessons => lessons.flatMap((lesson, i) => [i ? ", " : "", open(lesson, number(lesson))]);
  const hours = Math.round(course.lessons.reduce((sum, lesson) => sum + lesson.minutes, 0) / 60);
  const [first] = course.lessons;
  const begin = button("", () => actions.open("notebooks", course.next() ?? first), "wb-begin");
  const update = () => {
    begin.textContent = beginText(course);
  };
  course.watchers.add(update);
  update();
  const heading = text => element("h2", { textContent: text });
  return element(
    "article",
    { className: "wb-welcome" },
    element("h1", { textContent: "Distributed deep learning, from a notebook" }),
    paragraph(
      "You train one model on several processes, the ranks. A cell that begins with ",
      code("%%px"),
      " runs on all of them. If you make a mistake, no cell hangs: an error names the rank, and what to do."
    ),
    paragraph(begin),
    heading("Which way"),
    element(
      "ul",
      {},
      element("li", {}, "A first look: ", open(first, name(first)), `, ${first.minutes} minutes alone.`),
      element("li", {}, "Two hours in a class: the exercises of lessons ", ...numbers(course.twoHours), "; of the last one, four cards."),
      element("li", {}, `All ${course.lessons.length} lessons: ${hours} hours alone. They are in the side bar, with your progress.`)
    ),
    heading("Your copies"),
    paragraph(
      "Lessons open as your own copies, in ",
      code(`${course.folder}/`),
      ", without outputs: guess first, then run. Write into them as you like. The published ones, with outputs, stay in ",
      code("notebooks/"),
      "."
    ),
    heading("How to stop"),
    paragraph(
      "Choose ",
      element("b", { textContent: "File → Shut Down" }),
      ", or press Ctrl-C twice in the terminal. Kernels and engines end, too; your copies and your progress stay. To come back: ",
      code("make lab"),
      " or ",
      code("workbench lab"),
      "."
    )
  );
}

// --- look -------------------------------------------------------------------------------------------------------

const STYLE = `
  .wb-course, .wb-welcome { background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); height: 100%; overflow: auto;
    font: var(--jp-ui-font-size1)/1.5 var(--jp-ui-font-family); box-sizing: border-box; }
  .wb-head, .wb-foot { padding: 8px 12px; }
  .wb-course h2 { font-size: var(--jp-ui-font-size2); margin: 0 0 4px; }
  .wb-head > div { display: flex; justify-content: space-between; gap: 8px; margin-bottom: 8px; }
  .wb-course progress { accent-color: var(--jp-brand-color1); width: 100%; }
  .wb-course ol, .wb-course ul { list-style: none; margin: 0; padding: 0; }
  .wb-lesson { border-left: 3px solid transparent; border-top: 1px solid var(--jp-border-color2); display: grid;
    grid-template-columns: minmax(0, 1fr) max-content; gap: 0 8px; padding: 5px 12px 5px 9px; }
  .wb-lesson.wb-next { background: var(--jp-layout-color2); border-left-color: var(--jp-brand-color1); }
  .wb-lesson details { grid-column: 1 / -1; }
  .wb-lesson summary { cursor: pointer; }
  .wb-lesson ul { padding: 2px 0 4px 14px; }
  .wb-lesson ul li { display: flex; gap: 6px; align-items: baseline; }
  .wb-lesson details > button { display: block; margin-left: 14px; }
  .wb-newer { margin: 2px 0 2px 14px; }
  .wb-mark { width: 1em; }
  .wb-title, .wb-link { background: none; border: 0; color: var(--jp-content-link-color); cursor: pointer; font: inherit;
    padding: 1px 0; text-align: left; }
  .wb-title { color: var(--jp-ui-font-color0); font-weight: 600; }
  .wb-title:hover, .wb-link:hover { text-decoration: underline; }
  .wb-begin { background: var(--jp-brand-color1); border: 0; border-radius: 3px; color: var(--jp-ui-inverse-font-color0);
    cursor: pointer; font: inherit; font-weight: 600; padding: 6px 12px; text-align: left; }
  .wb-course .wb-begin { width: 100%; }
  .wb-course :focus-visible, .wb-welcome :focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: 1px; }
  .wb-welcome { font-size: var(--jp-content-font-size1); line-height: 1.6; padding: 32px max(24px, calc(50% - 21em)); }
  .wb-welcome h1 { font-size: var(--jp-content-font-size4); line-height: 1.25; margin: 0 0 0.6em; }
  .wb-welcome h2 { font-size: var(--jp-content-font-size2); margin: 1.4em 0 0.3em; }
  .wb-welcome p { margin: 0.5em 0; }
  .wb-welcome ul { margin: 0; padding-left: 1.3em; }
  .wb-welcome .wb-link { display: inline; text-decoration: underline; }
  .wb-welcome code { font-family: var(--jp-code-font-family); font-size: 0.95em; }
  /* The first line of a folded cell ends where its place ends; else it makes the whole notebook scroll sideways. */
  .jp-Placeholder-content { min-width: 0; overflow: hidden; }
  .jp-Placeholder-contentContainer { min-width: 0; }
  .jp-PlaceholderText { overflow: hidden; text-overflow: ellipsis; }
  /* A figure is an image that follows the colour scheme of its place: that of JupyterLab, not that of the system. */
  [data-jp-theme-light="false"] .jp-RenderedSVG img { color-scheme: dark; }
  [data-jp-theme-light="true"] .jp-RenderedSVG img { color-scheme: light; }
`;

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24"><g class="jp-icon3" fill="#616161">
<path d="M12 3 1 8.5 12 14l9-4.5V16h2V8.5z"/><path d="M5 12.5V17c0 1.7 3.1 3 7 3s7-1.3 7-3v-4.5L12 16z"/></g></svg>`;

// --- plugins ------------------------------------------------------------------------------------------------------

/** How long to wait for more of the same before the progress is read again. */
const PAUSE_MS = 500;

export async function plugins(library, extension) {
  const names = ["application", "apputils", "coreutils", "notebook", "statusbar", "ui-components"];
  const [application, apputils, { PageConfig }, notebook, { IStatusBar }, { LabIcon }, { Widget }] = await Promise.all(
    [...names.map(each => `@jupyterlab/${each}`), "@lumino/widgets"].map(library)
  );
  const { ILabShell } = application;
  const { Dialog, ICommandPalette, MainAreaWidget, showDialog, showErrorMessage } = apputils;
  const { INotebookTracker, NotebookActions } = notebook;
  document.head.append(element("style", { textContent: STYLE }));

  async function activate(app, shell, tracker, palette) {
    const folder = PageConfig.getOption("workbenchCourse");
    if (!folder) return; // not started by `make lab` or `workbench lab`: there are no copies
    const { commands, serviceManager } = app;
    const found = await fetch(new URL("course.json", import.meta.url)).then(answer => answer.json());
    const course = new Course(found, folder, serviceManager.contents);
    const icon = new LabIcon({ name: `${extension}:course`, svgstr: ICON });
    const widget = (node, id, label) => {
      const made = new Widget({ node });
      Object.assign(made, { id });
      Object.assign(made.title, { icon, label, caption: "Course" });
      return made;
    };

    const shown = act => (...args) => act(...args).catch(error => showErrorMessage("The course", error));
    const actions = {
      open: shown(async (kind, lesson, exercise) => {
        const path = course.path(kind, lesson);
        const isThere = await course.contents.get(path, { content: false }).then(() => true, () => false);
        if (!isThere) await reset(course, kind, lesson, tracker); // it was removed, or the lesson is new
        const panel = await commands.execute("docmanager:open", { path, factory: "Notebook" });
        if (exercise) await scroll(panel, exercise);
      }),
      reset: shown(async (kind, lesson) => {
        const what = `your copy of ${kind === "notebooks" ? "lesson" : "the exercises of"} ${name(lesson)}`;
        const { button } = await showDialog({
          title: "Reset my copy?",
          body: `A new one takes the place of ${what}. The old one is kept beside it, and your progress stays.`,
          buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: "Reset" })]
        });
        if (button.accept) await reset(course, kind, lesson, tracker);
        if (button.accept) await actions.open(kind, lesson);
      }),
      welcome: () => commands.execute("workbench:welcome")
    };

    const bar = widget(sideBar(course, actions), "wb-course", "");
    shell.add(bar, "left", { rank: 50 });
    let page;
    const label = "Welcome to the course";
    commands.addCommand("workbench:welcome", {
      label,
      execute: () => {
        if (!page || page.isDisposed) {
          page = new MainAreaWidget({ content: widget(welcomePage(course, actions), "wb-welcome", "Welcome") });
          page.id = "wb-welcome-page";
          page.toolbar.hide();
        }
        if (!page.isAttached) shell.add(page, "main");
        shell.activateById(page.id);
      }
    });
    palette?.addItem({ command: "workbench:welcome", category: "Help" });

    let timer;
    const later = () => {
      clearTimeout(timer);
      timer = setTimeout(() => void course.refresh(), PAUSE_MS);
    };
    NotebookActions.executed.connect(later);
    serviceManager.contents.fileChanged.connect(later);
    void course.refresh();

    await app.restored;
    const open = [...shell.widgets("main")];
    if (!PageConfig.getOption("treePath") && open.every(each => each.id.startsWith("launcher"))) {
      shell.activateById(bar.id);
      await commands.execute("workbench:welcome");
      open.forEach(each => each.close());
    }
  }

  /** To the cell in which an exercise is done. */
  async function scroll(panel, exercise) {
    await panel.context.ready;
    await panel.revealed;
    const cells = [...(panel.content.model?.cells ?? [])];
    const index = cells.findIndex(cell => cell.getMetadata("nbgrader")?.grade_id === exercise.name.replace(".", "-"));
    if (index < 0) return;
    panel.content.activeCellIndex = index;
    await panel.content.scrollToItem(index, "start");
  }

  /** Put a new copy in the place of the learner's, which is kept with the next free number in its name. */
  async function reset(course, kind, lesson, tracker) {
    const path = course.path(kind, lesson);
    const contents = course.contents;
    const fresh = withoutOutputs((await contents.get(`${kind}/${lesson.stem}.ipynb`)).content);
    const panel = tracker.find(each => each.context.path === path);
    if (panel) {
      if (panel.context.model.dirty) await panel.context.save();
      await panel.context.sessionContext.shutdown();
      panel.dispose();
    }
    course.read.delete(lesson.stem);
    const names = (await contents.get(`${course.folder}/${kind}`)).content.map(each => each.name);
    if (names.includes(`${lesson.stem}.ipynb`)) {
      let i = 1;
      while (names.includes(`${lesson.stem}.${i}.ipynb`)) i++;
      await contents.rename(path, `${course.folder}/${kind}/${lesson.stem}.${i}.ipynb`);
    }
    await contents.save(path, { type: "notebook", format: "json", content: fresh });
    await course.taken(kind, lesson);
  }

  return [
    {
      id: `${extension}:course`,
      description: "The course as a side bar, and a welcome page.",
      autoStart: true,
      requires: [INotebookTracker],
      optional: [ILabShell, ICommandPalette],
      activate: (app, tracker, shell, palette) => {
        if (shell) void activate(app, shell, tracker, palette);
      }
    },
    {
      id: `${extension}:predict`,
      description: "Folds the source of a question when its form is there.",
      autoStart: true,
      activate: () => NotebookActions.executed.connect((_, { cell, success }) => success && foldQuestion(cell))
    },
    {
      id: `${extension}:status`,
      description: "What the ranks of the current notebook do, in the status bar.",
      autoStart: true,
      requires: [INotebookTracker],
      optional: [IStatusBar],
      activate: (app, tracker, bar) => bar?.registerStatusItem(`${extension}:status`, statusItem(Widget, tracker))
    }
  ];
}

/** A cell that asks for a guess and does nothing else: below stands its form then, so the question need not stand above it. */
function foldQuestion(cell) {
  const lines = cell.model.sharedModel.source.split("\n").filter(line => !/^(\s*|#.*|(import|from) .*)$/.test(line));
  const asks = lines[0]?.startsWith("predict(") && lines.slice(1).every(line => /^(\s|\)$)/.test(line));
  if (asks && cell.model.outputs.length) cell.inputHidden = true;
}

/** Something to see from a notebook's first cell on that runs, until its ranks end; a saved output alone says nothing. */
function statusItem(Widget, tracker) {
  const node = element("span", { className: "jp-StatusBar-TextItem" });
  const texts = new Map(); // by notebook
  const show = () => {
    const text = texts.get(tracker.currentWidget?.id) ?? "";
    node.textContent = text.length > 80 ? `${text.slice(0, 79)}…` : text;
    node.title = text;
  };
  tracker.currentChanged.connect(show);
  document.addEventListener("workbench-ranks", ({ detail: { notebook, ranks, note, running, live } }) => {
    const count = ranks.length === 1 ? "1 rank" : `${ranks.length} ranks`;
    if (!ranks.length) texts.delete(notebook);
    else if (running || live || texts.has(notebook)) texts.set(notebook, `${count}: ${running ? note || "busy" : "idle"}`);
    show();
  });
  return { item: new Widget({ node }), align: "left", rank: 10, isActive: () => true };
}
