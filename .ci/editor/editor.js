// The editor of the live pages: CodeMirror 6 with Python, as one script that defines window.wbEditor.
import { EditorState } from "@codemirror/state";
import { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { indentUnit, bracketMatching, indentOnInput, syntaxHighlighting, HighlightStyle } from "@codemirror/language";
import { python } from "@codemirror/lang-python";
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define([
  { tag: tags.keyword, class: "wb-k" },
  { tag: [tags.string, tags.special(tags.string)], class: "wb-s" },
  { tag: tags.comment, class: "wb-c" },
  { tag: [tags.number, tags.bool, tags.null], class: "wb-n" },
  { tag: [tags.definition(tags.function(tags.variableName)), tags.definition(tags.className)], class: "wb-f" },
  { tag: tags.meta, class: "wb-f" },
]);

// An editor within `parent`. Tab indents; Escape, then Tab, leaves it by keyboard. Shift+Enter and Ctrl+Enter call run.
function make(parent, { text, label, change, run }) {
  const keys = [
    { key: "Shift-Enter", run: () => (run(), true) },
    { key: "Mod-Enter", run: () => (run(), true) },
  ];
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([...keys, ...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        lineNumbers(), history(), drawSelection(), bracketMatching(), closeBrackets(), indentOnInput(),
        highlightActiveLine(), EditorView.lineWrapping, indentUnit.of("    "), python(), syntaxHighlighting(colours),
        EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        EditorView.updateListener.of((update) => update.docChanged && change(view.state.doc.toString())),
      ],
    }),
  });
  return {
    get text() { return view.state.doc.toString(); },
    set text(given) { view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: given } }); },
    focus() { view.focus(); },
  };
}

window.wbEditor = { make };
