// Predictions without a kernel: a question becomes a form, and its answer stays closed until a guess is made.
// What the notebook holds: [data-predict] and [data-reveal], see workbench/course/predictions/page.py.
// Guesses stay in this browser (localStorage), and nowhere else.

(() => {
  const KEY = "workbench.predictions";

  function make(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  // Where the browser keeps nothing (private windows may refuse), guesses last as long as the page.
  const book = {
    kept: {},
    load() {
      try {
        this.kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
      } catch {
        this.kept = {};
      }
    },
    set(name, answer) {
      if (answer === undefined) delete this.kept[name];
      else this.kept[name] = answer;
      try {
        localStorage.setItem(KEY, JSON.stringify(this.kept));
      } catch {
        // kept for this page
      }
    },
  };

  const said = (answer, unit) => {
    if (Array.isArray(answer)) return answer.join(" → ");
    if (typeof answer !== "number") return answer;
    return `${answer.toLocaleString("en", { maximumSignificantDigits: 4 })} ${unit}`.trim();
  };

  function isRight(asked, guess, fact) {
    if (typeof guess === "number" && typeof fact === "number") {
      return Math.abs(guess - fact) <= (asked.tolerance ?? 0.1) * Math.abs(fact);
    }
    return JSON.stringify(guess) === JSON.stringify(fact);
  }

  function off(guess, fact) {
    if (typeof guess !== "number" || typeof fact !== "number" || guess * fact <= 0) return "";
    const factor = guess / fact;
    const [by, word] = factor > 1 ? [factor, "large"] : [1 / factor, "small"];
    return `, ${by.toLocaleString("en", { maximumSignificantDigits: 2 })} times too ${word}`;
  }

  // The three kinds of questions: what is to be filled in, and how the answer is read from it (undefined: none yet).
  const kinds = {
    choices(asked) {
      const group = `wb-${asked.name}`;
      const rows = asked.options.map((option) => {
        const input = make("input", { type: "radio", name: group, value: option });
        return make("label", { class: "wb-option" }, input, option);
      });
      return { rows, read: () => rows.map((row) => row.firstChild).find((each) => each.checked)?.value };
    },
    number(asked) {
      const input = make("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 12 });
      const label = make("label", { class: "wb-option" }, "Your number ", input, asked.unit ? ` ${asked.unit}` : "");
      const read = () => {
        const number = Number(input.value.replaceAll(",", ""));
        return input.value.trim() && Number.isFinite(number) ? number : undefined;
      };
      return { rows: [label], read };
    },
    order(asked) {
      const list = make("ol", { class: "wb-order" });
      const move = (item, by) => {
        const rest = [...list.children];
        const to = Math.min(Math.max(rest.indexOf(item) + by, 0), rest.length - 1);
        rest.splice(rest.indexOf(item), 1);
        rest.splice(to, 0, item);
        list.replaceChildren(...rest);
      };
      for (const option of asked.options) {
        const item = make("li", { "data-option": option }, make("span", {}, option));
        for (const [word, by] of [["Up", -1], ["Down", 1]]) {
          const button = make("button", { type: "button", "aria-label": `${word}: ${option}` }, word);
          button.addEventListener("click", () => (move(item, by), button.focus()));
          item.append(button);
        }
        list.append(item);
      }
      return { rows: [list], read: () => [...list.children].map((each) => each.dataset.option) };
    },
  };

  class Prediction {
    constructor(place) {
      this.place = place;
      this.asked = JSON.parse(place.dataset.predict);
      this.reveals = [];
      this.place.id ||= `predict-${this.asked.name}`;
      this.show();
    }

    get guess() {
      return book.kept[this.asked.name];
    }

    show() {
      this.place.replaceChildren(this.guess === undefined ? this.form() : this.answered());
      for (const each of this.reveals) each.show();
    }

    form() {
      const { rows, read } = kinds[this.asked.kind](this.asked);
      const missing = make("p", { class: "wb-missing", role: "status" });
      const title = make("legend", {}, make("strong", {}, "Predict: "), this.asked.question);
      const button = make("button", { type: "submit" }, "This is my guess");
      const form = make("form", {}, make("fieldset", {}, title, ...rows, button, missing));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const answer = read();
        if (answer === undefined) {
          missing.textContent = this.asked.kind === "number" ? "A number, please, such as 12 or 1.5e3." : "Choose one first.";
          return;
        }
        book.set(this.asked.name, answer);
        this.show();
        this.place.querySelector("button").focus();
      });
      return form;
    }

    answered() {
      const again = make("button", { type: "button" }, "Forget my guess");
      again.addEventListener("click", () => {
        book.set(this.asked.name);
        this.show();
        this.place.querySelector("input, button").focus();
      });
      const guess = make("p", { role: "status" }, "Your guess: ", make("strong", {}, said(this.guess, this.asked.unit)));
      guess.append(". The answer below is open now.");
      return make("div", {}, make("p", {}, make("strong", {}, "Predict: "), this.asked.question), guess, again);
    }
  }

  class Reveal {
    constructor(place, prediction) {
      [this.place, this.prediction, this.anyway] = [place, prediction, false];
      this.told = JSON.parse(place.dataset.reveal);
      prediction?.reveals.push(this);
      this.show();
    }

    show() {
      const isOpen = !this.prediction || this.prediction.guess !== undefined || this.anyway;
      this.place.replaceChildren(...(isOpen ? this.open() : this.closed()));
    }

    closed() {
      const link = make("a", { href: `#${this.prediction.place.id}` }, "Answer the prediction first");
      const button = make("button", { type: "button" }, "Show anyway");
      button.addEventListener("click", () => {
        this.anyway = true;
        this.show();
        this.place.tabIndex = -1;
        this.place.focus();
      });
      return [make("p", {}, link, ": then your guess stands here beside the fact. "), button];
    }

    open() {
      const [asked, guess] = [this.prediction?.asked ?? {}, this.prediction?.guess];
      const list = make("dl", { class: "wb-beside" });
      if (guess !== undefined) {
        const right = isRight(asked, guess, this.told.value);
        const mark = right ? "✓ right" : `✗ not right${off(guess, this.told.value)}`;
        const verdict = make("span", { class: right ? "wb-right" : "wb-wrong" }, mark);
        const row = make("dd", {}, said(guess, asked.unit), " ", verdict);
        list.append(make("div", {}, make("dt", {}, "Your guess"), row));
      }
      list.append(make("div", {}, make("dt", {}, "Fact"), make("dd", {}, this.told.fact)));
      return [list, make("p", {}, this.told.why)];
    }
  }

  function start() {
    book.load();
    const found = new Map();
    for (const place of document.querySelectorAll("[data-predict]")) {
      const one = new Prediction(place);
      found.set(one.asked.name, one);
    }
    for (const place of document.querySelectorAll("[data-reveal]")) {
      new Reveal(place, found.get(JSON.parse(place.dataset.reveal).name));
    }
  }

  document.addEventListener("DOMContentLoaded", start);
})();
