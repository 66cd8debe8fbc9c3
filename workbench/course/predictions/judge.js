// The rules of question.py for pages that have no kernel: what an answer is, whether it is right, and how it is said.
// tests/site/test_judge.py holds that both say the same.

const wbJudge = (() => {
  const THOUSANDS = /(?<=\d),(?=\d{3}(?!\d))/g; // 1,200 is one number; 1,5 is not taken for 15
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

  // An answer as it is kept: a number of what was typed. Of a form's choice and order nothing else can come.
  function accept(asked, value) {
    if (asked.kind !== "number") return value;
    let text = value.trim();
    if (asked.unit && text.endsWith(asked.unit)) text = text.slice(0, -asked.unit.length).trim();
    text = text.replaceAll(THOUSANDS, "");
    if (NUMBER.test(text) && Number.isFinite(Number(text))) return Number(text);
    const unit = asked.unit ? ` of ${asked.unit}` : "";
    throw new Error(`${asked.name}: '${value}' is no number. Give a number${unit}, such as 12 or 1.5, with a point.`);
  }

  const areNumbers = (...values) => values.every((each) => typeof each === "number");

  function isRight(asked, guess, fact) {
    if (areNumbers(guess, fact)) return Math.abs(guess - fact) <= asked.tolerance * Math.abs(fact);
    return JSON.stringify(guess) === JSON.stringify(fact);
  }

  function off(asked, guess, fact) {
    if (!areNumbers(guess, fact) || isRight(asked, guess, fact) || guess * fact <= 0) return "";
    const factor = guess / fact;
    return factor > 1 ? `${number(factor, 2)} times too large` : `${number(1 / factor, 2)} times too small`;
  }

  function said(asked, answer) {
    if (Array.isArray(answer)) return answer.join(" → ");
    if (typeof answer !== "number") return answer ?? wbForm.NO_GUESS;
    const one = answer === 1 && asked.unit.length > 2; // "ms" is no plural
    return `${number(answer)} ${one ? asked.unit.replace(/s$/, "") : asked.unit}`.trimEnd();
  }

  // A number in few digits.
  function number(value, digits = 4) {
    const written = (options) => value.toLocaleString("en", { roundingMode: "halfEven", ...options });
    const few = written({ maximumSignificantDigits: digits, useGrouping: false });
    if (Number.isInteger(value) || Math.abs(few) >= 10 ** digits) return written({ maximumFractionDigits: 0 });
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e").map(Number);
    return exponent < -4 ? `${mantissa}e-${String(-exponent).padStart(2, "0")}` : few; // as Python writes it
  }

  // What there is to say about a guess, for wbForm.beside.
  function verdict(asked, guess, told) {
    const [right, by] = [isRight(asked, guess, told.value), off(asked, guess, told.value)];
    return { guess: said(asked, guess), off: by, right, fact: told.fact, why: told.why };
  }

  return { accept, verdict };
})();
