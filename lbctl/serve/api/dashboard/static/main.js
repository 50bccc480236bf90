// Starts the page: the stream feeds the store, the store notifies the views, and only the visible view is drawn.

import * as actions from "/dashboard/actions.js";
import { hasToken, onToken, setToken } from "/dashboard/api.js";
import { Connection } from "/dashboard/connection.js";
import { askToken, perform } from "/dashboard/dialog.js";
import { eachFrame, setAttribute, setText } from "/dashboard/dom.js";
import { Fleet } from "/dashboard/fleet.js";
import { clock, span } from "/dashboard/format.js";
import { Heat } from "/dashboard/heat.js";
import { History } from "/dashboard/history.js";
import { Log } from "/dashboard/log.js";
import { Panel } from "/dashboard/panel.js";
import { Proxies } from "/dashboard/proxies.js";
import { Rollouts } from "/dashboard/rollouts.js";
import { Store } from "/dashboard/store.js";

const byId = (id) => document.getElementById(id);
const store = new Store();
const panel = new Panel(byId("panel"), store);
const fleet = new Fleet(byId("view-fleet"), store, panel);
const heat = new Heat(byId("view-heat"), store, (pool, name) => panel.open(pool, name));
const views = {
  fleet,
  rollouts: new Rollouts(byId("view-rollouts"), store),
  proxies: new Proxies(byId("view-proxies"), store),
  history: new History(byId("view-history")),
  log: new Log(byId("view-log"), store),
};

// ── Views ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const NAMES = ["fleet", "heat", "rollouts", "proxies", "history", "log"];
const view = () => (NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "fleet");

function route() {
  for (const name of NAMES) byId(`view-${name}`).hidden = name !== view();
  for (const link of document.querySelectorAll(".tabs a"))
    setAttribute(link, "aria-current", link.hash === `#${view()}` ? "page" : null);
  document.querySelector(".tabs [aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  if (view() === "heat") heat.load();
  if (view() === "log") views.log.refresh();
  if (view() === "history") views.history.refresh();
  draw();
}

const draw = eachFrame(() => {
  views[view()]?.update();
  setText(byId("rollout-count"), store.rollouts.filter((item) => item.phase === "progressing").length || "");
  setText(
    byId("proxy-count"),
    store.proxies.filter((item) => item.kind !== "reader" && item.state !== "GONE").length || "",
  );
});

store.addEventListener("change", ({ detail }) => {
  if (detail.has("status")) fleet.noteOverrides();
  if (detail.has("events")) views.log.refresh();
  if (detail.has("status")) views.history.use(store.status.served);
  draw();
});
addEventListener("hashchange", route);

// ── The connection ───────────────────────────────────────────────────────────────────────────────────────────────────

let lost = null;
const connection = new Connection(
  (kind, data, id) => (kind === "live" ? store.apply(data) : store.note(kind, data, id)),
  (state) => (state.kind === "live" ? connected() : disconnected(state)),
);

function connected() {
  lost = null;
  show("live", "live");
}

function disconnected(state) {
  const first = lost === null;
  lost = { ...state, since: lost?.since ?? Date.now() };
  show(state.kind, state.kind === "locked" ? "locked" : "disconnected");
  tell();
  if (first && state.kind === "locked") unlock(state.message);
}

function show(state, label) {
  setAttribute(byId("link"), "data-link", state);
  setText(byId("link").querySelector(".words"), label);
  document.documentElement.classList.toggle("stale", state !== "live");
  if (state === "live") byId("banner").hidden = true;
}

/** Show the time of the disconnection, and of the next attempt. */
function tell() {
  if (!lost) return;
  const next = lost.until === Infinity ? "" : ` Next attempt in ${span((lost.until - Date.now()) / 1000)}.`;
  setText(
    byId("banner"),
    `Disconnected since ${clock(lost.since)}: ${lost.message}. ${store.at ? `This page shows the state at ${clock(store.at)}.` : "This page has no data yet."}${next}`,
  );
  byId("banner").hidden = false;
}
setInterval(tell, 1000);
byId("banner").addEventListener("click", () => (lost?.kind === "locked" ? unlock(lost.message) : connection.retry()));
addEventListener("online", () => connection.retry());
addEventListener("pagehide", () => connection.leave());
addEventListener("pageshow", ({ persisted }) => persisted && connection.retry());

async function unlock(message) {
  if (await askToken(`${message} The token is kept only in this tab.`)) connection.retry();
}

// ── The bar ──────────────────────────────────────────────────────────────────────────────────────────────────────────

byId("query").addEventListener("input", ({ target }) => {
  if (view() !== "fleet") location.hash = "fleet";
  fleet.find(target.value);
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  fleet.table.element.focus();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  byId("query").focus();
});

byId("reload").addEventListener("click", () => {
  const losses = store.status?.fleet.shrink.map((item) => item.message).join("; ") ?? "";
  perform(actions.reload(losses));
});
byId("access").addEventListener("click", async () => {
  if (hasToken()) setToken("");
  else
    await askToken(
      "An action needs a token with the operate role. The token is kept only in this tab, until you close the tab or choose “Forget token”.",
    );
});
onToken(() => {
  setText(byId("access"), hasToken() ? "Forget token" : "Read only");
  byId("access").classList.toggle("held", hasToken());
});

const THEMES = { auto: ["◐", "automatic"], light: ["☀", "light"], dark: ["☾", "dark"] };
const THEME_KEY = "lbctl-theme";
let theme = "auto";

function showTheme(name) {
  theme = name;
  const [sign, label] = THEMES[name];
  setAttribute(document.documentElement, "data-theme", name === "auto" ? null : name);
  setText(byId("theme"), sign);
  for (const attribute of ["aria-label", "title"]) setAttribute(byId("theme"), attribute, `Colours: ${label}`);
}

/** Call `work` with the browser's storage. If storage is disabled, browsers throw even on access. */
function withStorage(work) {
  try {
    return work(localStorage);
  } catch {
    return null;
  }
}
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  showTheme(names[(names.indexOf(theme) + 1) % names.length]);
  withStorage((storage) => storage.setItem(THEME_KEY, theme));
});
const storedTheme = withStorage((storage) => storage.getItem(THEME_KEY));
showTheme(Object.hasOwn(THEMES, storedTheme) ? storedTheme : "auto");

route();
connection.run();
