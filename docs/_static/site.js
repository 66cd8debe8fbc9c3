// What pages need beyond the theme: players, dark widgets, names that break well, and a way for the keyboard into what
// scrolls.

(() => {
  // A page that is a file may not read other files, so there the search lists titles without excerpts.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  }

  // The picture is in the page; the player takes its place.
  function play(place) {
    const svg = new XMLSerializer().serializeToString(place.querySelector("svg"));
    const values = { svg, alt: place.querySelector("svg").getAttribute("aria-label"), seconds: Number(place.dataset.player) };
    place.replaceChildren();
    window.wbPlayer.render({ model: { get: (name) => values[name] }, el: place });
  }

  window.wbPlay = play; // for what is shown later

  // Who has no pointer scrolls what has the focus.
  const SCROLLS = "pre, .table-wrapper, .output, .wb-picture, .toctree-wrapper";
  function reach() {
    for (const each of document.querySelectorAll(SCROLLS)) {
      if (each.scrollWidth > each.clientWidth + 1) each.tabIndex = 0;
      else each.removeAttribute("tabindex");
    }
  }

  // A long name in a table breaks after a dot, an underscore or a bracket, rather than anywhere.
  function breakable(code) {
    const parts = code.textContent.split(/(?<=[._(,=])(?=\w)/);
    code.replaceChildren(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
  }

  // The theme's two columns have no names of their own.
  const NAMES = { ".sidebar-drawer": "All pages", ".toc-drawer": "This page" };
  function name() {
    for (const [selector, text] of Object.entries(NAMES)) {
      document.querySelector(selector)?.setAttribute("aria-label", text);
    }
  }

  // What is dark in JupyterLab is dark here: the widgets' style asks for its attribute.
  const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
  function theme() {
    const chosen = document.body.dataset.theme;
    const dark = chosen === "dark" || (chosen !== "light" && SYSTEM.matches);
    document.body.dataset.jpThemeLight = String(!dark);
  }

  document.addEventListener("DOMContentLoaded", () => {
    theme();
    SYSTEM.addEventListener("change", theme);
    new MutationObserver(theme).observe(document.body, { attributeFilter: ["data-theme"] });
    name();
    document.querySelectorAll("[data-player]").forEach(play);
    document.querySelectorAll("table.docutils code .pre").forEach(breakable);
    reach();
    window.addEventListener("resize", reach);
  });
})();
