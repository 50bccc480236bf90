// The dialog of an action: it shows the effect, and asks for a reason and, if there is none yet, for the token.

import { hasToken, setToken } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";

const dialog = document.getElementById("dialog");
dialog.addEventListener("close", () => dialog.replaceChildren());
dialog.addEventListener("keydown", (event) => event.stopPropagation());

/** Ask, act, and return whether it was done. If the server rejects the action, its message is shown. */
export function perform(action) {
  const token = hasToken()
    ? null
    : {
        name: "token",
        label: "Token",
        type: "password",
        check: (text) => (text.trim() ? "" : "enter a token"),
      };
  const reason = action.noReason
    ? null
    : {
        name: "reason",
        label: "Reason",
        placeholder: "for the audit log and your colleagues",
        check: (text) => (text.trim() ? "" : "enter a short reason"),
      };
  return ask({ ...action, fields: [reason, ...(action.fields ?? []), token].filter(Boolean) });
}

/** Ask only for the token, to read or to act. */
export function askToken(effect) {
  return ask({
    title: "Token",
    verb: "Use it",
    effect,
    fields: [
      { name: "token", label: "Token", type: "password", check: (text) => (text.trim() ? "" : "paste the token") },
    ],
    run: async () => ({}),
  });
}

function ask(action) {
  return new Promise((resolve) => {
    const inputs = action.fields.map(input);
    const problem = h("p", { class: "problem", role: "alert" });
    const confirm = h("button", { type: "submit", class: action.danger ? "danger" : "primary", text: action.verb });
    const form = h(
      "form",
      { method: "dialog", novalidate: true },
      h("h2", { id: "dialog-title", text: action.title }),
      h("p", { text: action.effect }),
      inputs.map(({ label }) => label),
      problem,
      h("menu", {}, h("button", { type: "button", text: "Cancel", on: { click: () => finish(false) } }), confirm),
    );
    const finish = (done) => {
      dialog.close();
      resolve(done);
    };
    dialog.oncancel = () => resolve(false);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const values = collect(inputs);
      if (!values) return;
      if (values.token) setToken(values.token);
      confirm.disabled = true;
      problem.textContent = "";
      try {
        const answer = await action.run(values);
        if (!action.done) finish(true);
        else showResult(action, answer, problem, form, finish);
      } catch (error) {
        if (error.status === 401) refuseToken(inputs, form, problem);
        problem.textContent = error.message;
      } finally {
        confirm.disabled = false;
      }
    });
    dialog.replaceChildren(form);
    dialog.showModal();
    (inputs[0]?.control ?? confirm).focus();
  });
}

function input({ name, label, type = "text", placeholder, value, check }) {
  const control = h("input", {
    name,
    type,
    placeholder,
    value,
    autocomplete: "off",
    spellcheck: "false",
    maxlength: type === "text" ? 200 : null,
  });
  const problem = h("small", { class: "problem" });
  const box = type === "checkbox";
  const caption = h("span", { text: label });
  return {
    name,
    control,
    problem,
    check,
    box,
    label: h("label", { class: box ? "box" : "field" }, ...(box ? [control, caption] : [caption, control]), problem),
  };
}

/** The values of all inputs, or null if one is invalid. */
function collect(inputs) {
  const values = Object.fromEntries(inputs.map(({ name, control, box }) => [name, box ? control.checked : control.value]));
  const wrong = inputs.filter(({ control, problem, check }) => {
    problem.textContent = check?.(control.value, values) ?? "";
    control.setAttribute("aria-invalid", problem.textContent ? "true" : "false");
    return problem.textContent;
  });
  wrong[0]?.control.focus();
  return wrong.length ? null : values;
}

/** Remove a token that the server rejects, and ask for it again. */
function refuseToken(inputs, form, problem) {
  setToken("");
  let token = inputs.find(({ name }) => name === "token");
  if (!token) {
    token = input({
      name: "token",
      label: "Token",
      type: "password",
      check: (text) => (text.trim() ? "" : "enter a token"),
    });
    inputs.push(token);
    form.insertBefore(token.label, problem);
  }
  token.control.value = "";
  token.control.focus();
}

function showResult(action, answer, problem, form, finish) {
  const wrong = action.wrong?.(answer);
  problem.textContent = action.done(answer);
  problem.classList.toggle("fine", !wrong);
  if (!wrong)
    form
      .querySelector("menu")
      .replaceChildren(
        h("button", { type: "button", class: "primary", text: "Close", on: { click: () => finish(true) } }),
      );
}
