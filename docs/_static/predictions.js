// Predictions without a kernel: a question becomes a form, and its answer stays closed until a guess is made.
// What the notebook holds: [data-predict] and [data-reveal], see workbench/course/predictions/page.py. The form and the
// rules are those of the notebook: form.js and judge.js, which stand before this file.
// Guesses stay in this browser (localStorage), and nowhere else.

(() => {
  const KEY = "workbench.predictions";
  const { make } = wbForm;

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

  function button(text, action) {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", action);
    return made;
  }

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
      const form = wbForm.form(this.asked, this.guess ?? null, (answer) => this.answered(answer));
      this.form = form;
      if (this.guess !== undefined) {
        form.fields.disabled = true;
        form.button.hidden = true;
        form.say("Your guess is stored in this browser. The answer below is open now.");
        form.root.append(button("Forget my guess", () => this.forget()));
      }
      this.place.replaceChildren(form.root);
      for (const each of this.reveals) each.show();
    }

    answered(answer) {
      try {
        book.set(this.asked.name, wbJudge.accept(this.asked, answer));
      } catch (error) {
        this.form.say(error.message);
        return;
      }
      this.show();
      this.place.querySelector("form > button").focus();
    }

    forget() {
      book.set(this.asked.name);
      this.show();
      this.place.querySelector("input, button").focus();
    }
  }

  class Reveal {
    constructor(place, prediction) {
      [this.place, this.prediction, this.anyway] = [place, prediction, false];
      this.told = JSON.parse(place.dataset.reveal);
      this.box = make("div", { class: "wbq" });
      place.replaceChildren(this.box);
      prediction.reveals.push(this);
      this.show();
    }

    show() {
      const isOpen = this.prediction.guess !== undefined || this.anyway;
      this.box.replaceChildren(...(isOpen ? this.open() : this.closed()));
    }

    closed() {
      const link = make("a", { href: `#${this.prediction.place.id}` }, "Answer the prediction first");
      const look = button("Show anyway", () => {
        this.anyway = true;
        this.show();
        this.place.tabIndex = -1;
        this.place.focus();
      });
      return [make("p", {}, link, ": then your guess stands here beside the fact."), look];
    }

    open() {
      const { asked, guess } = this.prediction;
      return wbForm.beside(wbJudge.verdict(asked, guess, this.told));
    }
  }

  function start() {
    book.load();
    const found = new Map();
    for (const place of document.querySelectorAll("[data-predict]")) {
      const one = new Prediction(place);
      found.set(one.asked.name, one);
    }
    // An answer whose question is not on this page stays as the notebook shows it: a line that opens.
    for (const place of document.querySelectorAll("[data-reveal]")) {
      const prediction = found.get(JSON.parse(place.dataset.reveal).name);
      if (prediction) new Reveal(place, prediction);
    }
  }

  document.addEventListener("DOMContentLoaded", start);
})();
