// The splits of routes that forward to several pools: the published shares, and overrides.

import * as actions from "/dashboard/actions.js";
import { perform } from "/dashboard/dialog.js";
import { h, keyed, setText } from "/dashboard/dom.js";
import { heldBy } from "/dashboard/panel.js";

/** Pool and its share of the requests as a text, for each pool of a split. */
export function sharesOf(split) {
  const all = Object.values(split).reduce((one, other) => one + other, 0);
  return Object.entries(split).map(([pool, share]) => [
    pool,
    `${all ? Number(((100 * share) / all).toFixed(1)) : 0} %`,
  ]);
}

export class Splits {
  constructor(store) {
    this.store = store;
    this.list = h("div", { class: "cards" });
    this.element = h("section", { class: "splits", "aria-label": "Splits" }, h("h2", { text: "Splits" }), this.list);
  }

  update() {
    this.element.hidden = !this.store.splits.length;
    keyed(
      this.list,
      this.store.splits,
      (item) => item.route,
      ({ route }) =>
        h(
          "article",
          { class: "card" },
          h("h3", { text: route }),
          h("dl", { class: "facts" }),
          h("p", { class: "muted" }),
          h("div", { class: "buttons" }),
        ),
      (card, item) => this.fill(card, item),
    );
  }

  fill(card, item) {
    const [, facts, about, buttons] = card.children;
    const held = this.store.heldSplit(item.route);
    const rollout = this.store.rollouts.find(({ route }) => route === item.route);
    keyed(
      facts,
      sharesOf(item.shares),
      ([pool]) => pool,
      ([pool]) => h("div", {}, h("dt", { text: pool }), h("dd")),
      (line, [, share]) => setText(line.lastChild, share),
    );
    const moves = rollout && rollout.percent !== null;
    setText(about, held ? `Override ${heldBy(held)}.` : `The split of ${moves ? "the rollout" : "the files"}.`);
    keyed(
      buttons,
      [
        [held ? "Change split" : "Override split", () => actions.setSplit(item, rollout)],
        ...(held ? [["Release split", () => actions.unsetSplit(item, rollout)]] : []),
      ],
      ([label]) => label,
      ([label]) => h("button", { type: "button", text: label }),
      (button, [, action]) => {
        button.onclick = () => perform(action());
      },
    );
  }
}
