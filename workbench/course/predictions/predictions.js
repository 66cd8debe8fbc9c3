// The form of a question, and the guess beside the fact. The kernel keeps the guess and tells the fact: nothing in here
// knows what is right. All texts are set as texts, so none of them can be markup.

const KEYS = { "data-lm-suppress-shortcuts": "true" }; // pressed on such an element they are not for the notebook

function make(name, attributes = {}, text = "") {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

const CHANGES = "change:stored change:told change:message change:handled";
let forms = 0; // radio buttons of different forms must have different names

class Form {
  constructor(model, el) {
    this.model = model;
    this.data = model.get("data");
    this.form = make("form", { class: "wbq", "data-name": this.data.name });
    this.fields = make("fieldset");
    const legend = make("legend");
    legend.append(make("strong", {}, "Predict: "), this.data.question);
    this.fields.append(legend);
    this.read = { choices: () => this.choices(), number: () => this.number(), order: () => this.order() }[this.data.kind]();
    this.button = make("button", { type: "submit", ...KEYS }, "Store my guess");
    this.status = make("p", { role: "status" });
    this.fields.append(this.button);
    this.form.append(this.fields, this.status);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.refresh = () => this.show();
    model.on(CHANGES, this.refresh);
    el.append(this.form);
    this.show();
  }

  choices() {
    const name = `wbq-${forms++}`;
    const inputs = this.data.options.map((option) => {
      const label = make("label", { class: "wbq-choice" });
      const input = make("input", { type: "radio", name, value: option, ...KEYS });
      input.checked = option === this.model.get("stored");
      label.append(input, make("span", {}, option));
      this.fields.append(label);
      return input;
    });
    return () => inputs.find((input) => input.checked)?.value ?? null;
  }

  number() {
    const label = make("label", { class: "wbq-number" });
    const stored = this.model.get("stored");
    const input = make("input", { type: "text", inputmode: "decimal", size: 12, autocomplete: "off", ...KEYS });
    input.value = stored ?? "";
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // a notebook takes the key for itself otherwise
      event.stopPropagation();
      this.send();
    });
    label.append("Your guess: ", input, ` ${this.data.unit}`);
    this.fields.append(label);
    return () => input.value.trim() || null;
  }

  order() {
    const stored = this.model.get("stored");
    const list = make("ol", { "aria-label": "Your order" });
    const texts = () => [...list.children].map((item) => item.dataset.option);
    const move = (item, by, button) => {
      const other = by < 0 ? item.previousElementSibling : item.nextElementSibling;
      if (!other) return;
      if (by < 0) other.before(item);
      else other.after(item);
      button.focus(); // so that it can be moved on
      this.status.textContent = `${item.dataset.option}: now at place ${texts().indexOf(item.dataset.option) + 1}.`;
    };
    for (const option of Array.isArray(stored) ? stored : this.data.options) {
      const item = make("li");
      item.dataset.option = option;
      for (const [sign, word, by] of [["↑", "up", -1], ["↓", "down", 1]]) {
        const button = make("button", { type: "button", "aria-label": `Move ${word}: ${option}`, ...KEYS }, sign);
        button.addEventListener("click", () => move(item, by, button));
        item.append(button);
      }
      item.append(make("span", {}, option));
      list.append(item);
    }
    this.fields.append(list);
    return texts;
  }

  send() {
    const answer = this.read();
    if (answer === null) {
      this.status.textContent = this.data.kind === "number" ? "Enter a number first." : "Choose one first.";
      return;
    }
    this.status.textContent = "Storing… (it waits while a cell runs)";
    this.model.set("answer", { value: answer, at: Date.now() }); // the time, so that the same answer is sent again
    this.model.save_changes();
  }

  show() {
    this.fields.disabled = this.model.get("told");
    this.status.textContent = this.model.get("message");
    if (this.model.get("stored") !== null) this.button.textContent = "Change my guess";
    this.button.hidden = this.model.get("told");
  }

  leave() {
    this.model.off(CHANGES, this.refresh);
    this.form.remove();
  }
}

class Answer {
  constructor(model, el) {
    this.model = model;
    this.root = make("div", { class: "wbq", role: "status" });
    this.refresh = () => this.show();
    model.on("change:told change:due", this.refresh);
    el.append(this.root);
    this.show();
  }

  show() {
    const told = this.model.get("told");
    this.root.replaceChildren();
    if (!told.name) {
      this.root.append(make("p", { class: "wbq-due" }, this.model.get("due")));
      return;
    }
    const pair = make("div", { class: "wbq-pair" });
    const guess = told.off ? `${told.guess} (${told.off})` : told.guess;
    for (const [name, text] of [["Your guess", guess], ["Fact", told.fact]]) {
      const part = make("div");
      part.append(make("span", { class: "wbq-name" }, `${name}: `), make("strong", {}, text));
      pair.append(part);
    }
    pair.dataset.right = told.right;
    const mark = told.right ? "✓ As you said." : told.guess === "no guess" ? "" : "✗ Not as you said.";
    this.root.append(pair);
    if (mark) this.root.append(make("p", { class: "wbq-mark" }, mark));
    if (told.why) this.root.append(make("p", {}, told.why));
  }

  leave() {
    this.model.off("change:told change:due", this.refresh);
    this.root.remove();
  }
}

function render({ model, el }) {
  const part = model.get("part") === "answer" ? new Answer(model, el) : new Form(model, el);
  return () => part.leave();
}

export default { render };
