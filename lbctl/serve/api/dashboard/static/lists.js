// The smaller views: rollouts with their steps and analysis, proxies, and the log of decisions and actions.

import * as actions from "/dashboard/actions.js";
import { analysisView, fill } from "/dashboard/analysis.js";
import { read } from "/dashboard/api.js";
import { perform } from "/dashboard/dialog.js";
import { eachFrame, h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { dateAndClock, plural, since, span } from "/dashboard/format.js";

const OFFERS = { waiting: ["start"], progressing: ["promote", "pause", "abort"], paused: ["promote", "resume", "abort"], promoted: ["abort"], aborted: ["start"], rolled_back: ["start"], superseded: ["start"] };
const AUDIT_ROWS = 200;
const LOG_ROWS = 300;

export class Rollouts {
  constructor(element, store) {
    this.store = store;
    this.list = h("div", { class: "cards" });
    this.empty = h("p", { class: "empty", text: "No route of the fleet has a rollout." });
    element.append(this.list, this.empty);
  }

  update() {
    const { rollouts } = this.store;
    this.empty.hidden = rollouts.length > 0;
    keyed(this.list, rollouts, (item) => item.route, () => this.card(), (element, item) => this.fill(element, item));
  }

  card() {
    return h("article", { class: "card" }, h("header", {}, h("h3"), h("span", { class: "chip phase" })), h("p", { class: "lead" }), h("ol", { class: "steps" }), h("dl", { class: "facts" }), analysisView(), h("div", { class: "buttons" }));
  }

  fill(element, item) {
    const [header, lead, steps, facts, analysis, buttons] = element.children;
    setText(header.firstChild, `${item.route} → ${item.to}`);
    setText(header.lastChild, item.phase.replace("_", " "));
    setAttribute(header.lastChild, "data-phase", item.phase);
    setText(lead, sentence(item, this.store.now()));
    keyed(steps, item.steps, (step) => item.steps.indexOf(step), () => h("li", {}, h("i"), h("b"), h("small")), (mark, step) => {
      const index = item.steps.indexOf(step);
      const done = item.phase === "promoted" || index < item.step - 1;
      setAttribute(mark, "data-step", done ? "done" : index === item.step - 1 && ["progressing", "paused"].includes(item.phase) ? "now" : "ahead");
      setText(mark.children[1], `${step.percent} %`);
      setText(mark.children[2], step.hold === null ? "by hand" : `hold ${span(step.hold)}`);
    });
    const shares = Object.values(item.split).reduce((one, other) => one + other, 0);
    keyed(facts, [
      ...Object.entries(item.split).map(([pool, share]) => [`Share of ${pool}`, `${shares ? ((100 * share) / shares).toFixed(share % 1 ? 1 : 0) : 0} %`]),
      ["Mode", item.mode], ["Since", item.since ? dateAndClock(item.since) : "–"], ["Reason", item.reason ?? "–"],
    ], ([label]) => label, ([label]) => h("div", {}, h("dt", { text: label }), h("dd")), (line, [, value]) => setText(line.lastChild, value));
    fill(analysis, item.analysis);
    keyed(buttons, OFFERS[item.phase] ?? [], (name) => name, (name) => h("button", { type: "button", class: name === "abort" ? "danger" : "", text: name[0].toUpperCase() + name.slice(1) }), (button, name) => {
      button.onclick = () => perform(actions.rollout(item, name));
    });
  }
}

function sentence(item, now) {
  const left = item.next_at ? Math.max(0, (Date.parse(item.next_at) - now) / 1000) : null;
  const when = left === null ? "somebody has to promote it" : `the next step is in ${span(left)}`;
  return {
    waiting: "Nobody has started it.",
    progressing: `Step ${item.step} of ${item.steps.length}: ${item.to} gets ${item.percent} %; ${when}.`,
    paused: `Paused at ${item.percent} %, step ${item.step} of ${item.steps.length}.`,
    promoted: `All steps are done: ${item.to} gets ${item.percent} %.`,
    aborted: "Aborted: the split of the files holds.",
    rolled_back: `Rolled back, since the analysis has found ${item.to} bad: the split of the files holds.`,
    superseded: "The files have another split, which holds.",
  }[item.phase] ?? item.phase;
}

export class Proxies {
  constructor(element, store) {
    this.store = store;
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", text: "No proxy is connected or driven." });
    const titles = ["Proxy", "Kind", "State", "Last good", "Since", "Why"];
    this.table = h("table", { class: "wide" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col", text: title })))), this.body);
    element.append(h("div", { class: "scroll" }, this.table), this.empty);
  }

  update() {
    const { proxies, status } = this.store;
    this.empty.hidden = proxies.length > 0;
    this.table.hidden = !proxies.length;
    const version = status?.snapshot?.version;
    keyed(this.body, proxies, (item) => `${item.kind} ${item.node}`, () => h("tr", {}, Array.from({ length: 6 }, () => h("td", {}, h("span"), h("small")))), (row, item) => {
      const current = item.last_good === version;
      const texts = [
        [item.node, item.proxy && item.proxy !== item.node ? item.proxy : ""], [item.kind, item.detail], [item.state, item.connected ? "" : "not connected"],
        [item.last_good.slice(0, 8) || "–", item.last_good ? (current ? "newest" : "older than what is published") : "nothing yet"],
        [since(item.since, this.store.now()), ""], [item.reason, ""],
      ];
      texts.forEach(([text, about], index) => {
        setText(row.children[index].children[0], text);
        setText(row.children[index].children[1], about);
      });
      setAttribute(row, "data-sync", item.state);
    });
  }
}

export class Log {
  constructor(element, store) {
    this.element = element;
    this.store = store;
    this.audit = [];
    this.list = h("ol", { class: "log", "aria-label": "Decisions and actions, the newest first" });
    this.about = h("p", { class: "muted", text: "Events of this control plane, and the audit log: the newest first." });
    element.append(this.about, this.list);
    this.update = eachFrame(() => this.draw());
    this.due = 0;
  }

  /** Read the audit log again, at most every two seconds. */
  async refresh() {
    if (this.element.hidden) return;
    if (Date.now() < this.due) return void (this.timer ??= setTimeout(() => { this.timer = null; this.refresh(); }, this.due - Date.now()));
    this.due = Date.now() + 2000;
    try {
      this.audit = (await read(`/api/v1/audit?last=${AUDIT_ROWS}`)).records;
      setText(this.about, "Events of this control plane, and the audit log: the newest first.");
    } catch (error) {
      setText(this.about, `The audit log cannot be read: ${error.message}`);
    }
    this.update();
  }

  draw() {
    if (this.element.hidden) return;
    const lines = [
      ...this.audit.map((item) => ({ key: `a${item.number}`, at: item.at, kind: "action", who: item.actor, text: [item.action, item.subject].join(" "), more: item.reason })),
      ...this.store.events.map(({ kind, data, id }) => ({ key: `e${id}`, at: data.at, kind, who: "lbctl", ...told(kind, data) })).filter((line) => line.at),
    ].sort((one, other) => Date.parse(other.at) - Date.parse(one.at)).slice(0, LOG_ROWS);
    keyed(this.list, lines, (line) => line.key, (line) => h("li", { "data-kind": line.kind }, h("time", { datetime: line.at, text: dateAndClock(line.at) }), h("b", { text: line.who }), h("span", { text: line.text }), h("small", { text: line.more ?? "" })), () => {});
  }
}

/** What an event says, as a sentence. */
function told(kind, data) {
  if (kind === "published") {
    const moved = Object.entries(data.weights).flatMap(([pool, weights]) => Object.entries(weights).map(([name, weight]) => `${pool}/${name} ${weight}`));
    const count = moved.length + data.more_weights;
    const changed = Object.entries(data.changed).map(([type, number]) => `${number} ${type}`).join(", ");
    return { text: count ? `${plural(count, "weight")} moved by ${data.cause}` : `published by ${data.cause}${changed ? `: ${changed}` : ""}`, more: moved.slice(0, 6).join(", ") + (count > 6 ? ` and ${count - 6} more` : "") };
  }
  if (kind === "overrides") {
    const name = (item) => `${item.kind} ${item.replica ? `${item.pool}/${item.replica}` : item.pool || item.route}`;
    return { text: [...data.added.map((item) => `${name(item)} is held`), ...data.removed.map((item) => `${name(item)} has ended`)].join(", "), more: data.added.map((item) => [item.author, item.reason].filter(Boolean).join(": ")).join(", ") };
  }
  if (kind === "reload") return { text: `files read: ${data.result}`, more: data.refused ?? (data.errors || data.warnings ? `${plural(data.errors, "error")}, ${plural(data.warnings, "warning")}` : "") };
  if (kind === "rollout") {
    const share = data.percent === null ? "" : ` at ${data.percent} %`;
    const verdict = data.evaluation ? `, evaluated as ${data.evaluation.verdict}` : "";
    return { text: `rollout of ${data.route}: ${data.phase.replace("_", " ")}, step ${data.step}${share}${verdict}`, more: data.evaluation?.reason ?? data.reason ?? "" };
  }
  if (kind === "rollback") return { text: `rolled back to ${data.digest.slice(0, 8)} by ${data.author}`, more: data.reason ?? "" };
  if (kind === "task_failed") return { text: `the task ${data.task} has failed and starts again` };
  return { text: kind };
}
