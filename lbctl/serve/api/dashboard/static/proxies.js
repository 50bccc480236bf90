// The proxies: the last accepted version of each, and the reason if it is not in sync.

import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { since } from "/dashboard/format.js";

const TITLES = ["Proxy", "Kind", "State", "Last good", "Since", "Why"];

export class Proxies {
  constructor(element, store) {
    this.store = store;
    this.body = h("tbody");
    this.empty = h("p", { class: "empty" });
    this.table = h(
      "table",
      { class: "wide" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          TITLES.map((title) => h("th", { scope: "col", text: title })),
        ),
      ),
      this.body,
    );
    element.append(h("div", { class: "scroll" }, this.table), this.empty);
  }

  update() {
    const { proxies, status } = this.store;
    this.empty.hidden = proxies.length > 0;
    setText(this.empty, this.store.emptyText("No proxy is connected or managed."));
    this.table.hidden = !proxies.length;
    const version = status?.snapshot?.version;
    keyed(
      this.body,
      proxies,
      (item) => `${item.kind} ${item.node}`,
      () =>
        h(
          "tr",
          {},
          TITLES.map((title) => h("td", { "data-title": title }, h("span"), h("small"))),
        ),
      (row, item) => {
        const current = item.last_good === version;
        const texts = [
          [item.node, item.proxy && item.proxy !== item.node ? item.proxy : ""],
          [item.kind, item.detail],
          [item.state, item.connected ? "" : "not connected"],
          [
            item.last_good.slice(0, 8) || "–",
            item.last_good ? (current ? "newest" : "older than the published version") : "nothing yet",
          ],
          [since(item.since, this.store.now()), ""],
          [item.reason, ""],
        ];
        texts.forEach(([text, about], index) => {
          setText(row.children[index].children[0], text);
          setText(row.children[index].children[1], about);
        });
        setAttribute(row, "data-sync", item.state);
      },
    );
  }
}
