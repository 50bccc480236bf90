// Previously published fleets, and rollbacks to an earlier one.

import * as actions from "/dashboard/actions.js";
import { read } from "/dashboard/api.js";
import { perform } from "/dashboard/dialog.js";
import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { dateAndClock, plural } from "/dashboard/format.js";

const TITLES = ["Since", "Digest", "Commit", "Fleet", "Cause", ""];
const CAUSES = { files: () => "the files", reload: (by) => `reload by ${by}`, rollback: (by) => `rollback by ${by}` };

export class History {
  constructor(element) {
    this.element = element;
    this.entries = [];
    this.served = "";
    this.body = h("tbody");
    const head = TITLES.map((title) => h("th", { scope: "col", text: title }));
    this.table = h("table", { class: "wide history" }, h("thead", {}, h("tr", {}, head)), this.body);
    this.about = h("p", { class: "muted" });
    element.append(this.about, h("div", { class: "scroll" }, this.table));
  }

  /** Read the history again if other files are published than before. `served`: that part of the status. */
  use(served) {
    const now = JSON.stringify(served);
    if (now === this.served) return;
    this.served = now;
    this.refresh();
  }

  async refresh() {
    if (this.element.hidden) return;
    try {
      this.entries = (await read("/api/v1/history")).entries.toReversed();
      setText(this.about, "Fleets that this control plane has published, newest first.");
    } catch (error) {
      setText(this.about, `The history cannot be read: ${error.message}`);
    }
    this.update();
  }

  update() {
    this.table.hidden = !this.entries.length;
    const current = this.entries.find((entry) => entry.current)?.digest;
    keyed(
      this.body,
      this.entries,
      ({ digest, at }) => `${digest} ${at}`,
      () =>
        h(
          "tr",
          {},
          TITLES.map((title) => h("td", { "data-title": title }, h("span"), h("small"))),
        ),
      (row, entry) => fill(row, entry, entry.digest !== current),
    );
  }
}

function fill(row, entry, other) {
  const texts = [
    [dateAndClock(entry.at), entry.current ? "published now" : ""],
    [entry.digest.slice(0, 12), ""],
    [entry.commit?.slice(0, 12) ?? "–", entry.dirty ? "with changes" : ""],
    [plural(entry.pools, "pool"), plural(entry.replicas, "replica")],
    [CAUSES[entry.action]?.(entry.actor) ?? entry.action, entry.reason ?? ""],
  ];
  texts.forEach(([text, about], index) => {
    setText(row.children[index].children[0], text);
    setText(row.children[index].children[1], about);
  });
  setAttribute(row, "aria-current", entry.current ? "true" : null);
  keyed(
    row.lastChild.firstChild,
    other ? [entry] : [],
    () => "back",
    () => h("button", { type: "button", text: "Roll back" }),
    (button) => {
      button.onclick = () => perform(actions.rollback(entry));
    },
  );
}
