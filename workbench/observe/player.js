// Plays a picture that the drawing code made: what has `data-begin` and `data-end` appears when its time comes.
// With `data-axis` on the document ("x of time 0, x of the end, the end in µs") time runs on, what is under way grows,
// and zooming stretches time. Without, times are the numbers of steps.

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const ZOOMS = [1, 2, 4, 8, 16];
const NOTCHES = 200; // of the slider, where time runs on
const NAMED = 4; // what the line below the picture names at most
const SVG = "http://www.w3.org/2000/svg";
const KEYS = { "data-lm-suppress-shortcuts": "true" }; // pressed on such an element they are not for the notebook
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

function fill(node, attributes, text = "") {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

const make = (name, attributes, text) => fill(document.createElement(name), attributes, text);
const draw = (name, attributes) => fill(document.createElementNS(SVG, name), attributes);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function duration(us) {
  const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : [us, "µs"];
  return `${us < 1e3 ? value.toFixed(us < 100 ? 1 : 0) : Number(value.toPrecision(3))} ${unit}`;
}

// The picture in the page, with its times.
class Picture {
  constructor(text) {
    const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    this.svg = document.importNode(parsed, true);
    for (const style of this.svg.querySelectorAll("style")) style.remove(); // the page's colours instead, see player.css
    for (const title of this.svg.querySelectorAll("title")) {
      title.parentNode.dataset.tip = title.textContent; // shown at once, and where the player has room
      title.remove();
    }
    [this.width, this.height] = this.svg.getAttribute("viewBox").split(" ").map(Number).slice(2);
    this.svg.removeAttribute("width");
    this.svg.removeAttribute("height");
    this.svg.setAttribute("style", `max-width:${this.width}px`);
    const axis = this.svg.dataset.axis?.split(" ").map(Number);
    [this.left, this.right, this.length] = axis ?? [0, 0, 0];
    this.timed = [...this.svg.querySelectorAll("[data-begin]")].map((node) => ({
      node,
      begin: Number(node.dataset.begin),
      end: Number(node.dataset.end),
      message: node.classList.contains("wbt-message"),
      rank: node.closest("[data-rank]")?.dataset.rank,
    }));
    this.runs = Boolean(axis); // time runs on, rather than in steps
    if (this.runs) this.prepare();
    else this.length = Math.max(0, ...this.timed.map((one) => one.end));
    this.tolerance = this.length / 500;
    this.stops = this.findStops();
  }

  // What moves when time is stretched comes into a group of its own, which ends where the ranks' names begin.
  prepare() {
    const id = `wbp-${Math.random().toString(36).slice(2)}`;
    const room = draw("clipPath", { id });
    room.append(draw("rect", { x: this.left - 14, y: 0, width: this.width - this.left + 14, height: this.height }));
    const past = draw("clipPath", { id: `${id}-past` });
    this.past = past.appendChild(draw("rect", { x: 0, y: 0, width: this.left, height: this.height }));
    this.svg.prepend(room, past);
    const plot = draw("g", { "clip-path": `url(#${id})` });
    plot.append(...this.svg.querySelectorAll(".wbt-axis"), ...this.timed.map((one) => one.node));
    this.cut = `url(#${id}-past)`;
    this.places = [];
    for (const node of plot.querySelectorAll("rect, line, text, path")) {
      const path = /^M([-\d.]+)/.exec(node.getAttribute("d") ?? "");
      if (path) this.places.push({ node, name: "transform", value: Number(path[1]) });
      for (const name of ["x", "x1", "x2", "width"]) {
        if (node.hasAttribute(name)) this.places.push({ node, name, value: Number(node.getAttribute(name)) });
      }
    }
    this.hand = plot.appendChild(draw("line", { class: "wbp-hand", y1: Number(this.svg.dataset.top ?? 42), y2: this.height - 22 }));
    this.svg.append(plot);
  }

  // Times at which something ends; those that look alike taken together.
  findStops() {
    const stops = [];
    for (const end of this.timed.map((one) => one.end).sort((a, b) => a - b)) {
      if (end <= this.tolerance) continue;
      if (end - stops.at(-1) <= this.tolerance) stops[stops.length - 1] = end;
      else stops.push(end);
    }
    return stops;
  }

  show(time, zoom) {
    for (const one of this.timed) {
      const complete = one.end <= time;
      const begun = complete || one.begin < time;
      one.node.classList.toggle("wbp-future", !begun);
      one.node.classList.toggle("wbp-now", !this.runs && one.begin === time);
      if (!this.runs) continue;
      one.node.classList.toggle("wbp-part", begun && !complete);
      if (begun && !complete) one.node.setAttribute("clip-path", this.cut);
      else one.node.removeAttribute("clip-path");
    }
    if (this.runs) this.stretch(time, zoom);
    else this.enlarge(zoom);
  }

  // Time zoomed, with the present in the middle where that is possible.
  stretch(time, zoom) {
    const wide = this.right - this.left;
    const now = this.length ? (time / this.length) * wide : 0;
    const shift = clamp(now * zoom - wide / 2, 0, wide * (zoom - 1));
    const place = (x) => this.left + (x - this.left) * zoom - shift;
    if (zoom !== this.zoom || shift !== this.shift) {
      for (const { node, name, value } of this.places) {
        if (name === "width") node.setAttribute(name, value * zoom);
        else if (name === "transform") node.setAttribute(name, `translate(${place(value) - value} 0)`);
        else node.setAttribute(name, place(value));
      }
      [this.zoom, this.shift] = [zoom, shift];
    }
    const x = place(this.left + now);
    this.past.setAttribute("width", x);
    this.hand.setAttribute("x1", x);
    this.hand.setAttribute("x2", x);
  }

  // The picture larger, with the present step in the middle.
  enlarge(zoom) {
    const box = this.svg.querySelector(".wbp-now")?.getBBox();
    const width = this.width / zoom;
    const x = box ? clamp(box.x + box.width / 2 - width / 2, 0, this.width - width) : 0;
    this.svg.setAttribute("viewBox", `${x} 0 ${width} ${this.height}`);
  }

  // What happens at a time, in words.
  words(time) {
    if (!this.runs) return this.svg.querySelector(".wbp-now")?.dataset.says ?? "";
    const near = this.tolerance;
    const now = this.timed.filter(
      (one) => one.node.dataset.tip && one.begin < time - near / 2 && one.end >= time - near && one.end > one.begin,
    );
    const messages = now.filter((one) => one.message);
    const named = (messages.length ? messages : now).map((one) => {
      const [first] = one.node.dataset.tip.split("\n");
      return one.message ? first : `rank ${one.rank}: ${first}`;
    });
    const more = named.length > NAMED ? ` and ${named.length - NAMED} more` : "";
    return named.slice(0, NAMED).join("; ") + more;
  }

  says(time) {
    if (this.runs) return `${duration(time)} of ${duration(this.length)}`;
    return `step ${time} of ${this.length}`;
  }
}

class Player {
  constructor(model, el) {
    this.picture = new Picture(model.get("svg"));
    this.seconds = model.get("seconds");
    [this.time, this.zoom, this.frame, this.timer] = [0, 0, 0, 0];
    this.root = make("div", { class: "wbp", role: "group", "aria-label": "Player" });
    this.stage = make("div", { class: "wbp-stage" });
    this.stage.append(this.picture.svg);
    this.line = make("div", { class: "wbp-line" });
    this.tip = make("div", { class: "wbp-tip", hidden: "" });
    this.root.append(this.stage, this.controls(), this.line, this.tip);
    this.root.addEventListener("pointermove", (event) => this.hover(event));
    this.root.addEventListener("pointerleave", () => (this.tip.hidden = true));
    el.append(this.root);
    this.go(0);
  }

  controls() {
    const bar = make("div", { class: "wbp-bar" });
    const button = (text, says, act) => {
      const node = make("button", { type: "button", title: says, "aria-label": says, ...KEYS }, text);
      node.addEventListener("click", act);
      return node;
    };
    const step = (time) => () => this.pause() ?? this.go(time());
    this.playing = button("Play", "Play", () => (this.isPlaying ? this.pause() : this.play()));
    this.playing.className = "wbp-play";
    const top = this.picture.runs ? NOTCHES : this.picture.length;
    this.slider = make("input", { type: "range", min: 0, max: top, step: 1, "aria-label": "Time", ...KEYS });
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go((Number(this.slider.value) / top) * this.picture.length);
    });
    this.clock = make("span", { class: "wbp-clock" });
    this.speed = make("select", { "aria-label": "Speed", ...KEYS });
    for (const each of SPEEDS) this.speed.append(new Option(`${each}×`, each, each === 1, each === 1));
    const speed = make("label", {}, "Speed ");
    speed.append(this.speed);
    this.magnified = make("span", { class: "wbp-magnified" });
    const zoom = make("span", { class: "wbp-zoom", role: "group", "aria-label": "Zoom" }, "Zoom");
    zoom.append(button("−", "Zoom out", () => this.magnify(-1)), this.magnified);
    zoom.append(button("+", "Zoom in", () => this.magnify(1)));
    bar.append(
      button("Rewind", "Rewind: back to the beginning", step(() => 0)),
      button("Back", "Back one step", step(() => this.before())),
      this.playing,
      button("Step", "Step on", step(() => this.after())),
      ...[this.slider, this.clock, speed, zoom],
    );
    return bar;
  }

  get isPlaying() {
    return Boolean(this.frame || this.timer);
  }

  after() {
    const near = this.picture.tolerance / 2;
    return this.picture.stops.find((stop) => stop > this.time + near) ?? this.picture.length;
  }

  before() {
    const near = this.picture.tolerance / 2;
    return this.picture.stops.findLast((stop) => stop < this.time - near) ?? 0;
  }

  go(time) {
    this.time = clamp(time, 0, this.picture.length);
    this.picture.show(this.time, ZOOMS[this.zoom]);
    const says = this.picture.says(this.time);
    this.slider.value = (this.time / (this.picture.length || 1)) * Number(this.slider.max);
    this.slider.setAttribute("aria-valuetext", says);
    this.clock.textContent = says;
    const words = this.picture.words(this.time);
    this.line.textContent = words || (this.time ? "" : "Press Play, or Step.");
    this.magnified.textContent = `${ZOOMS[this.zoom]}×`;
    this.root.dataset.time = this.time;
  }

  magnify(by) {
    this.zoom = clamp(this.zoom + by, 0, ZOOMS.length - 1);
    this.go(this.time);
  }

  play() {
    if (this.time >= this.picture.length) this.go(0);
    this.name("Pause");
    this.line.setAttribute("aria-live", "off"); // not every word while it runs
    if (this.picture.runs && !STILL.matches) this.glide(performance.now());
    else this.jump();
  }

  glide(since) {
    this.frame = requestAnimationFrame((now) => {
      const passed = (Math.max(0, now - since) / 1000) * Number(this.speed.value);
      this.go(this.time + (passed / this.seconds) * this.picture.length);
      if (this.time >= this.picture.length) this.pause();
      else this.glide(now);
    });
  }

  // From stop to stop: for steps, and for who asked the system for less motion.
  jump() {
    const each = Math.max(300, (this.seconds * 1000) / this.picture.stops.length) / Number(this.speed.value);
    this.timer = setTimeout(() => {
      this.go(this.after());
      if (this.time >= this.picture.length) this.pause();
      else this.jump();
    }, each);
  }

  name(word) {
    this.playing.textContent = this.playing.title = word;
    this.playing.setAttribute("aria-label", word);
  }

  pause() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    [this.frame, this.timer] = [0, 0];
    this.name("Play");
    this.line.setAttribute("aria-live", "polite");
  }

  hover(event) {
    const spot = event.target.closest("[data-tip]");
    this.tip.hidden = !spot;
    if (!spot) return;
    this.tip.textContent = spot.dataset.tip;
    const room = this.root.getBoundingClientRect();
    const x = clamp(event.clientX - room.left + 12, 0, room.width - this.tip.offsetWidth);
    const below = event.clientY - room.top + 16;
    const fits = below + this.tip.offsetHeight < room.height;
    this.tip.style.left = `${x}px`;
    this.tip.style.top = `${fits ? below : Math.max(0, below - this.tip.offsetHeight - 24)}px`;
  }
}

function render({ model, el }) {
  const player = new Player(model, el);
  return () => player.pause();
}

export default { render };
