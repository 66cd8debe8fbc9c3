// A question and its answer in a notebook. The kernel keeps the guess and tells the fact: nothing in here knows what is
// right. form.js stands before this file.

const CHANGES = "change:stored change:told change:message change:handled";

class Form {
  constructor(model, el) {
    this.model = model;
    this.form = wbForm.form(model.get("data"), model.get("stored"), (answer) => this.send(answer));
    this.refresh = () => this.show();
    model.on(CHANGES, this.refresh);
    el.append(this.form.root);
    this.show();
  }

  send(answer) {
    this.form.say("Storing… (it waits while a cell runs)");
    this.model.set("answer", { value: answer, at: Date.now() }); // the time, so that the same answer is sent again
    this.model.save_changes();
  }

  show() {
    this.form.fields.disabled = this.model.get("told");
    this.form.say(this.model.get("message"));
    if (this.model.get("stored") !== null) this.form.button.textContent = "Change my guess";
    this.form.button.hidden = this.model.get("told");
  }

  leave() {
    this.model.off(CHANGES, this.refresh);
    this.form.root.remove();
  }
}

class Answer {
  constructor(model, el) {
    this.model = model;
    this.root = wbForm.make("div", { class: "wbq", role: "status" });
    this.refresh = () => this.show();
    model.on("change:told change:due", this.refresh);
    el.append(this.root);
    this.show();
  }

  show() {
    const told = this.model.get("told");
    if (told.name) this.root.replaceChildren(...wbForm.beside(told));
    else this.root.replaceChildren(wbForm.make("p", { class: "wbq-due" }, this.model.get("due")));
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
