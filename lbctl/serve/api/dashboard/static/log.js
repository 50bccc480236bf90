// The log: decisions of the control plane and actions of operators, from its events and the audit log.

import { read } from "/dashboard/api.js";
import { eachFrame, h, keyed, setText } from "/dashboard/dom.js";
import { dateAndClock, plural } from "/dashboard/format.js";

const AUDIT_ROWS = 200;
const LOG_ROWS = 300;
/** Events whose action is in the audit log, with its author. */
const AUDITED = ["overrides", "rollback"];
/** Maximal number of milliseconds between an event and the record of the same action. */
const SAME_ACT = 2000;

export class Log {
  constructor(element, store) {
    this.element = element;
    this.store = store;
    this.audit = [];
    this.audited = false;
    this.list = h("ol", { class: "log", "aria-label": "Decisions and actions, newest first" });
    this.about = h("p", { class: "muted", text: "Events of this control plane and entries of the audit log, newest first." });
    element.append(this.about, this.list);
    this.update = eachFrame(() => this.draw());
    this.due = 0;
  }

  /** Read the audit log again, at most every two seconds. */
  async refresh() {
    if (this.element.hidden) return;
    if (Date.now() < this.due)
      return void (this.timer ??= setTimeout(() => {
        this.timer = null;
        this.refresh();
      }, this.due - Date.now()));
    this.due = Date.now() + 2000;
    try {
      this.audit = (await read(`/api/v1/audit?last=${AUDIT_ROWS}`)).records;
      this.audited = true;
      setText(this.about, "Events of this control plane and entries of the audit log, newest first.");
    } catch (error) {
      this.audited = false;
      setText(this.about, `The audit log cannot be read: ${error.message}`);
    }
    this.update();
  }

  draw() {
    if (this.element.hidden) return;
    const events = this.store.events.filter(({ kind, data }) => data.at && !(this.audited && AUDITED.includes(kind)));
    const lines = [
      ...this.audit.filter((item) => !events.some((event) => covers(event, item))).map((item) => ({
        key: `a${item.number}`,
        at: item.at,
        kind: "action",
        author: item.actor,
        text: [item.action, item.subject].join(" "),
        more: item.reason,
      })),
      ...events.map(({ kind, data, id }) => ({
        key: `e${id}`,
        at: data.at,
        kind,
        author: "lbctl",
        ...described(kind, data),
      })),
    ]
      .sort((one, other) => Date.parse(other.at) - Date.parse(one.at))
      .slice(0, LOG_ROWS);
    keyed(
      this.list,
      lines,
      (line) => line.key,
      (line) =>
        h(
          "li",
          { "data-kind": line.kind },
          h("time", { datetime: line.at, text: dateAndClock(line.at) }),
          h("b", { text: line.author }),
          h("span", { text: line.text }),
          h("small", { text: line.more ?? "" }),
        ),
      () => {},
    );
  }
}

/** Whether an event is about the same action of lbctl as a record of the audit log, with more details. */
function covers({ kind, data }, record) {
  if (record.actor !== "lbctl" || Math.abs(Date.parse(data.at) - Date.parse(record.at)) > SAME_ACT) return false;
  return (kind === "published" && record.action === "publish") || (kind === "rollout" && record.subject === data.route);
}

/** An event as a sentence. */
function described(kind, data) {
  if (kind === "published") {
    const moved = Object.entries(data.weights).flatMap(([pool, weights]) =>
      Object.entries(weights).map(([name, weight]) => `${pool}/${name} ${weight}`),
    );
    const count = moved.length + data.more_weights;
    const changed = Object.entries(data.changed)
      .map(([type, number]) => `${number} ${type}`)
      .join(", ");
    return {
      text: count
        ? `${plural(count, "weight")} changed by ${data.cause}`
        : `published by ${data.cause}${changed ? `: ${changed}` : ""}`,
      more: moved.slice(0, 6).join(", ") + (count > 6 ? ` and ${count - 6} more` : ""),
    };
  }
  if (kind === "overrides") {
    const name = (item) => `${item.kind} ${item.replica ? `${item.pool}/${item.replica}` : item.pool || item.route}`;
    return {
      text: [
        ...data.added.map((item) => `${name(item)} override set`),
        ...data.removed.map((item) => `${name(item)} override ended`),
      ].join(", "),
      more: data.added.map((item) => [item.author, item.reason].filter(Boolean).join(": ")).join(", "),
    };
  }
  if (kind === "reload")
    return {
      text: `files read: ${data.result}`,
      more:
        data.refused ??
        (data.errors || data.warnings ? `${plural(data.errors, "error")}, ${plural(data.warnings, "warning")}` : ""),
    };
  if (kind === "rollout") {
    const share = data.percent === null ? "" : ` at ${data.percent} %`;
    const verdict = data.evaluation ? `, evaluated as ${data.evaluation.verdict}` : "";
    return {
      text: `rollout of ${data.route}: ${data.phase.replace("_", " ")}, step ${data.step}${share}${verdict}`,
      more: data.evaluation?.reason ?? data.reason ?? "",
    };
  }
  if (kind === "rollback")
    return { text: `rolled back to ${data.digest.slice(0, 8)} by ${data.author}`, more: data.reason ?? "" };
  if (kind === "task_failed") return { text: `the task ${data.task} has failed and is restarted` };
  return { text: kind };
}
