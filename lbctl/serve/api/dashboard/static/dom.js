// Builds the page. Texts are set only as text, never as HTML, because names, reasons and messages are not trusted.

/** Make an element. `props`: attributes, `class`, `text`, `on` (event → listener), `hidden` and similar ones as booleans. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on")
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set the text of an element if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute if its value differs; null removes it. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Bring the children of `parent` in line with `items`: an element is kept for its key, moved, updated, or removed.
 * `create` makes an element of an item, `update` brings one up to date.
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = parent.lbctlChildren ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const element = before.get(key) ?? create(item);
    update(element, item);
    after.set(key, element);
    before.delete(key);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of before.values()) element.remove();
  parent.lbctlChildren = after;
}

/** Call `work` once before the next painting, however often this is called until then. */
export function eachFrame(work) {
  let planned = false;
  return () => {
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      work();
    });
  };
}
