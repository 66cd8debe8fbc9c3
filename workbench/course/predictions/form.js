// The form of a question, and a guess beside the fact: for the widget of a notebook (predictions.js) and for pages that
// have no kernel (docs/_static/predictions.js). Both put this file before their own. It judges nothing, and sets all
// texts as texts, so none of them can be markup.

const wbForm = (() => {
  const KEYS = { "data-lm-suppress-shortcuts": "true" }; // pressed on such an element they are not for the notebook
  const NO_GUESS = "no guess"; // as question.py says it
  let forms = 0; // radio buttons of different forms must have different names

  function make(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  const runsCell = (event) => event.key === "Enter" && (event.shiftKey || event.ctrlKey);

  // The notebook's keys work where its cell has the focus. On a page without a notebook the focus stays.
  function toCell(root, event) {
    const cell = root.closest(".jp-Cell");
    cell?.focus();
    if (!event) return;
    const { key, code, keyCode, shiftKey, ctrlKey } = event;
    const again = { key, code, keyCode, shiftKey, ctrlKey, bubbles: true, cancelable: true };
    cell?.dispatchEvent(new KeyboardEvent("keydown", again));
  }

  // The three kinds of questions. Each returns what is to be filled in, and a function that reads the answer (null: there
  // is none yet). A number is read as it was typed.
  const kinds = {
    choices({ asked, stored }) {
      const name = `wbq-${forms++}`;
      const inputs = asked.options.map((option) => make("input", { type: "radio", name, value: option, ...KEYS }));
      for (const input of inputs) input.checked = input.value === stored;
      const rows = inputs.map((input) => make("label", { class: "wbq-choice" }, input, make("span", {}, input.value)));
      return { rows, read: () => inputs.find((input) => input.checked)?.value ?? null };
    },

    number({ asked, stored, send }) {
      const input = make("input", { type: "text", inputmode: "decimal", size: 12, autocomplete: "off", ...KEYS });
      input.value = stored ?? "";
      input.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || runsCell(event)) return;
        event.preventDefault(); // a notebook takes the key for itself otherwise
        event.stopPropagation();
        send();
      });
      const row = make("label", { class: "wbq-number" }, "Your guess: ", input, ` ${asked.unit}`);
      return { rows: [row], read: () => input.value.trim() || null };
    },

    order({ asked, stored, say }) {
      const list = make("ol", { "aria-label": "Your order" });
      const texts = () => [...list.children].map((item) => item.dataset.option);
      const move = (item, by, button) => {
        const other = by < 0 ? item.previousElementSibling : item.nextElementSibling;
        if (!other) return;
        if (by < 0) other.before(item);
        else other.after(item);
        button.focus(); // so that it can be moved on
        say(`${item.dataset.option}: now at place ${texts().indexOf(item.dataset.option) + 1}.`);
      };
      for (const option of Array.isArray(stored) ? stored : asked.options) {
        const item = make("li", { "data-option": option });
        for (const [sign, word, by] of [["↑", "up", -1], ["↓", "down", 1]]) {
          const button = make("button", { type: "button", "aria-label": `Move ${word}: ${option}`, ...KEYS }, sign);
          button.addEventListener("click", () => move(item, by, button));
          item.append(button);
        }
        item.append(make("span", {}, option));
        list.append(item);
      }
      return { rows: [list], read: texts };
    },
  };

  // A form that calls answered(answer) when it is submitted. `stored` is a guess that was made before, or null.
  function form(asked, stored, answered) {
    const status = make("p", { role: "status" });
    const say = (text) => (status.textContent = text);
    const send = () => {
      const answer = read();
      if (answer === null) say(asked.kind === "number" ? "Enter a number first." : "Choose one first.");
      else answered(answer);
    };
    const { rows, read } = kinds[asked.kind]({ asked, stored, send, say });
    const title = make("legend", {}, make("strong", {}, `${asked.title ?? "Predict"}: `), asked.question);
    const button = make("button", { type: "submit", ...KEYS }, asked.title ? "Store my answer" : "Store my guess");
    const fields = make("fieldset", {}, title, ...rows, button);
    const root = make("form", { class: "wbq", "data-name": asked.name }, fields, status);
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
      toCell(root);
    });
    root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" && !runsCell(event)) return;
      event.preventDefault(); // Shift+Enter would press the button once more
      toCell(root, runsCell(event) ? event : null);
    });
    return { root, fields, button, say };
  }

  // What told says: {guess, off, right, fact, why}, texts but for right.
  function beside(told) {
    const part = (name, text) =>
      make("div", {}, make("span", { class: "wbq-name" }, `${name}: `), make("strong", {}, text));
    const guess = told.off ? `${told.guess} (${told.off})` : told.guess;
    const pair = make("div", { class: "wbq-pair" }, part("Your guess", guess), part("Fact", told.fact));
    const mark = make("p", { class: "wbq-mark", "data-right": told.right });
    mark.textContent = told.right ? "✓ As you said." : "✗ Not as you said.";
    const why = make("p", {}, told.why ?? "");
    return told.guess === NO_GUESS ? [pair, why] : [pair, mark, why];
  }

  return { NO_GUESS, make, form, beside };
})();
