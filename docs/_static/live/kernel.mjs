// What JupyterLite's kernel takes for Pyodide: Pyodide with the course, started as for a page.

import { load } from "./runtime.js";

export async function loadPyodide() {
  const python = await load({ parts: ["page", "kernel"], archives: ["workbench.zip", "kernel.zip"] });
  python.pyimport("workbench.course.browser.kernel").start();
  return python;
}
