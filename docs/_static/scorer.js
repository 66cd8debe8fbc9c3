// Sphinx's search takes this in place of its own weights: what has more of the words in its headings comes first, pages
// that answer a question come before lessons, and the changelog comes last.
var Scorer = {
  score: ([page, , , , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const words = [...Search._parseQuery(query)[1]];
    const headings = Search._index.titleterms;
    const at = Search._index.docnames.indexOf(page);
    const has = (word) => [].concat(headings.hasOwnProperty(word) ? headings[word] : []).includes(at);
    const part = words.length ? words.filter(has).length / words.length : 0;
    const kind = page.startsWith("how-to/") ? 4 : page.startsWith("about/") ? -8 : /^(api|exercises)\//.test(page) ? -4 : 0;
    return score + 12 * part + kind;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
