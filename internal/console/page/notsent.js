// @ts-check
// Why Enter sends nothing while a run is in progress.
import { element } from "./element.js";

/** The text above the question's field. It is hidden as soon as a question can be asked. */
export class NotSent {
  #root = /** @type {HTMLElement} */ (document.getElementById("not-sent"));

  /** @param {import("./answer.js").AnswerView} view of the run in progress */
  show(view) {
    const form = view.ask;
    if (!form) {
      this.#root.replaceChildren("Not sent: the answer to the last question is not complete. Wait for it, or stop it.");
    } else {
      const go = element("button", { type: "button", class: "link" }, "Go to the question");
      go.addEventListener("click", () => {
        for (let card = form.closest("details"); card; card = card.parentElement?.closest("details") ?? null) card.open = true;
        form.scrollIntoView({ block: "center" });
        /** @type {HTMLElement | null} */ (form.querySelector("button[type=submit]"))?.focus({ preventScroll: true });
        this.hide();
      });
      this.#root.replaceChildren("Not sent: the run waits for your answer above. Give it, or stop the run. ", go);
    }
    this.#root.hidden = false;
  }

  hide() {
    this.#root.hidden = true;
    this.#root.replaceChildren();
  }
}
