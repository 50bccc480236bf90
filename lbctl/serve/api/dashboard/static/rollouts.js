// The rollouts: the steps, the current state, the analysis and the actions of each. Below them the splits of routes.

import * as actions from "/dashboard/actions.js";
import { analysisView, fill } from "/dashboard/analysis.js";
import { perform } from "/dashboard/dialog.js";
import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { dateAndClock, percent, span } from "/dashboard/format.js";
import { Splits, sharesOf } from "/dashboard/splits.js";

const OFFERS = {
  waiting: ["start"],
  progressing: ["promote", "pause", "set", "abort"],
  paused: ["promote", "resume", "set", "abort"],
  promoted: ["abort"],
  aborted: ["start"],
  rolled_back: ["start"],
  superseded: ["start"],
};

export class Rollouts {
  constructor(element, store) {
    this.store = store;
    this.list = h("div", { class: "cards" });
    this.empty = h("p", { class: "empty" });
    this.splits = new Splits(store);
    element.append(this.list, this.empty, this.splits.element);
  }

  update() {
    const { rollouts } = this.store;
    this.empty.hidden = rollouts.length > 0;
    setText(this.empty, this.store.emptyText("No route of the fleet has a rollout."));
    keyed(
      this.list,
      rollouts,
      (item) => item.route,
      () => this.card(),
      (element, item) => this.fill(element, item),
    );
    this.splits.update();
  }

  card() {
    return h(
      "article",
      { class: "card" },
      h("header", {}, h("h3"), h("span", { class: "chip phase" })),
      h("p", { class: "lead" }),
      h("ol", { class: "steps" }),
      h("dl", { class: "facts" }),
      analysisView(),
      h("div", { class: "buttons" }),
    );
  }

  fill(element, item) {
    const [header, lead, steps, facts, analysis, buttons] = element.children;
    setText(header.firstChild, `${item.route} → ${item.to}`);
    setText(header.lastChild, item.phase.replace("_", " "));
    setAttribute(header.lastChild, "data-phase", item.phase);
    setText(lead, sentence(item, this.store.now()));
    keyed(
      steps,
      item.steps,
      (step) => item.steps.indexOf(step),
      () => h("li", {}, h("i"), h("b"), h("small")),
      (mark, step) => {
        const index = item.steps.indexOf(step);
        const done = item.phase === "promoted" || index < item.step - 1;
        setAttribute(
          mark,
          "data-step",
          done ? "done" : index === item.step - 1 && ["progressing", "paused"].includes(item.phase) ? "now" : "ahead",
        );
        setText(mark.children[1], `${step.percent} %`);
        setText(mark.children[2], step.hold === null ? "by hand" : `hold ${span(step.hold)}`);
      },
    );
    keyed(
      facts,
      [
        ...sharesOf(item.split).map(([pool, share]) => [`Share of ${pool}`, share]),
        [`Observed share of ${item.to}`, percent(item.observed)],
        ...(item.held_by ? [["Split override by", item.held_by]] : []),
        ...(item.unavailable ? [["Waits", item.unavailable]] : []),
        ["Mode", item.mode],
        ["Since", item.since ? dateAndClock(item.since) : "–"],
        ["Reason", item.reason ?? "–"],
      ],
      ([label]) => label,
      ([label]) => h("div", {}, h("dt", { text: label }), h("dd")),
      (line, [, value]) => setText(line.lastChild, value),
    );
    fill(analysis, item.analysis);
    keyed(
      buttons,
      OFFERS[item.phase] ?? [],
      (name) => name,
      (name) =>
        h("button", {
          type: "button",
          class: name === "abort" ? "danger" : "",
          text: name === "set" ? "Set share" : name[0].toUpperCase() + name.slice(1),
        }),
      (button, name) => {
        button.onclick = () => perform(name === "set" ? actions.setShare(item) : actions.rollout(item, name));
      },
    );
  }
}

function sentence(item, now) {
  const left = item.next_at ? Math.max(0, (Date.parse(item.next_at) - now) / 1000) : null;
  const hold = item.hold_waits_for ? `its hold waits for ${item.hold_waits_for}` : "an operator must promote it";
  const when = left === null ? hold : `the next step is in ${span(left)}`;
  return (
    {
      waiting: "The rollout has not started.",
      progressing: `Step ${item.step} of ${item.steps.length}: ${item.to} gets ${item.percent} %; ${when}.`,
      paused: `Paused at ${item.percent} %, step ${item.step} of ${item.steps.length}.`,
      promoted: `All steps are done: ${item.to} gets ${item.percent} %.`,
      aborted: "Aborted: the split in the files applies.",
      rolled_back: `Rolled back because of ${item.to}: the split in the files applies.`,
      superseded: "Superseded: the files contain a different split, which applies.",
    }[item.phase] ?? item.phase
  );
}
