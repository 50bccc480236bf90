// The analysis of a rollout: the condition that it waits for, the errors of both sides, and its last evaluations.

import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { clock, number, percent, plural } from "/dashboard/format.js";

const ROWS = 8;
const TITLES = ["At", "Step", "Verdict", "New errors", "Old errors", "Metrics", "Why"];

const counts = ({ requests, errors, rate }) =>
  requests ? `${percent(rate)} (${errors} of ${number(requests)})` : "no requests";
const metric = ({ name, new: fresh, old, ratio, verdict, problem }) =>
  problem
    ? `${name}: ${problem}`
    : `${name}: ${number(fresh, 2)} to ${number(old, 2)}${ratio === null ? "" : `, × ${number(ratio, 2)}`}, ${verdict}`;

/** The element of one rollout's analysis; `fill` brings it up to date. */
export function analysisView() {
  const head = TITLES.map((title) => h("th", { scope: "col", text: title }));
  return h(
    "div",
    { class: "analysis" },
    h("h4", { text: "Analysis" }),
    h("p"),
    h("ol", { class: "verdicts", "aria-hidden": "true" }),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody"))),
  );
}

export function fill(element, analysis) {
  element.hidden = !analysis;
  if (!analysis) return;
  const [, sentence, strip, scroll] = element.children;
  const counted = Object.entries(analysis.verdicts)
    .map(([verdict, count]) => `${count} ${verdict}`)
    .join(", ");
  const waits = analysis.waits_for ? `It waits for ${analysis.waits_for}. ` : "";
  setText(
    sentence,
    `${waits}In this step, the error rate is ${counts(analysis.new)} on the new side and ${counts(analysis.old)} on the old side. ` +
      `${counted ? `Evaluations: ${counted}` : "No evaluation yet"}; ${plural(analysis.failures, "bad evaluation")} in a row; ${analysis.max_failures} in a row end the rollout.`,
  );
  keyed(
    strip,
    analysis.evaluations,
    (item) => item.at,
    () => h("li"),
    (mark, item) => setAttribute(mark, "data-verdict", item.verdict),
  );
  const rows = analysis.evaluations.slice(-ROWS).reverse();
  scroll.hidden = !rows.length;
  keyed(
    scroll.querySelector("tbody"),
    rows,
    (item) => item.at,
    () =>
      h(
        "tr",
        {},
        TITLES.map((title) => h("td", { "data-title": title })),
      ),
    (row, item) => {
      const texts = [
        clock(item.at),
        String(item.step),
        item.verdict,
        counts(item.new),
        counts(item.old),
        item.metrics.map(metric).join("; "),
        item.reason ?? "",
      ];
      texts.forEach((text, index) => setText(row.children[index], text));
      setAttribute(row, "data-verdict", item.verdict);
    },
  );
}
