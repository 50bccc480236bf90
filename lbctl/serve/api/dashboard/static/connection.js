// Reads the stream of frames by `fetch`, because EventSource cannot send a token, and reconnects with growing pauses.

import { headers, refusal } from "/dashboard/api.js";

const FIRST_PAUSE = 1;
const MAX_PAUSE = 30;
const SILENCE = 15;

/** `onMessage(event, data, id)` for each event; `onState(state)` with `live`, `waiting` (until, message) or `locked`. */
export class Connection {
  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    this.pause = FIRST_PAUSE;
    this.retry = () => {};
  }

  async run() {
    for (;;) {
      const state = await this.once();
      const seconds = state.kind === "locked" ? Infinity : this.pause * (0.75 + Math.random() / 2);
      this.pause = Math.min(2 * this.pause, MAX_PAUSE);
      this.onState({ ...state, until: Date.now() + seconds * 1000 });
      await new Promise((resolve) => {
        this.retry = resolve;
        if (seconds !== Infinity) setTimeout(resolve, seconds * 1000);
      });
    }
  }

  /** End the stream: a browser that keeps a page it has left would keep its connection too, and has only six. */
  leave() {
    this.abort?.abort();
  }

  /** Stream until it ends, and return the reason. */
  async once() {
    const abort = new AbortController();
    this.abort = abort;
    let timer = setTimeout(() => abort.abort(), SILENCE * 1000);
    try {
      const response = await fetch("/api/v1/live", {
        headers: headers(),
        signal: abort.signal,
        credentials: "omit",
        cache: "no-store",
      });
      if (!response.ok) {
        const error = await refusal(response);
        return { kind: error.status === 401 ? "locked" : "waiting", message: error.message };
      }
      const parser = new Parser(this.onMessage);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return { kind: "waiting", message: "the stream has ended" };
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENCE * 1000);
        parser.feed(value);
        this.pause = FIRST_PAUSE;
        this.onState({ kind: "live" });
      }
    } catch (error) {
      const silent = abort.signal.aborted;
      return { kind: "waiting", message: silent ? `no data for ${SILENCE} s` : "no answer" };
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }
}

/** Server-sent events of a text that comes in parts. */
class Parser {
  constructor(onMessage) {
    this.onMessage = onMessage;
    this.rest = "";
  }

  feed(text) {
    const blocks = (this.rest + text).split("\n\n");
    this.rest = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      if (fields.event) this.onMessage(fields.event, JSON.parse(fields.data), Number(fields.id ?? 0));
    }
  }
}
