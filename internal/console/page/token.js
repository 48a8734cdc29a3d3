// @ts-check
// The bearer token, and the form that asks for it.

const key = "answerd.token";

/** The token of this tab. It is asked for once, however many requests wait for it. */
export class Token {
  value = stored();
  #form = /** @type {HTMLFormElement} */ (document.querySelector("#token-form"));
  #field = /** @type {HTMLInputElement} */ (document.querySelector("#token"));
  #reason = /** @type {HTMLElement} */ (document.querySelector("#token-reason"));
  #inUse = /** @type {HTMLElement} */ (document.querySelector("#signed-in"));
  /** @type {PromiseWithResolvers<void> | null} */
  #waiting = null;

  constructor() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#take();
    });
    document.querySelector("#token-forget")?.addEventListener("click", () => this.#set(""));
    this.#set(this.value);
  }

  /**
   * Shows the form and waits until it has been filled in.
   *
   * @param {string} reason why, for the reader
   * @param {AbortSignal | null} [signal] ends the waiting, not the asking
   * @returns {Promise<void>}
   */
  ask(reason, signal) {
    this.#reason.textContent = reason;
    if (!this.#waiting) {
      this.#waiting = Promise.withResolvers();
      this.#form.hidden = false;
      this.#field.focus({ preventScroll: true }); // the form is in view wherever the page stands
    }
    const { promise } = this.#waiting;
    if (!signal) return promise;
    return new Promise((resolve, reject) => {
      const left = () => reject(signal.reason);
      signal.addEventListener("abort", left, { once: true });
      promise.then(() => {
        signal.removeEventListener("abort", left);
        resolve();
      });
    });
  }

  #take() {
    const value = this.#field.value.trim().replace(/^Bearer\s+/i, "");
    // Anything else cannot stand in a header, and fetch would call it a lost connection.
    if (!/^[\x21-\x7e]+$/.test(value)) {
      this.#reason.textContent = "This cannot be a token: it has blanks or characters beyond ASCII.";
      return;
    }
    this.#set(value);
    this.#field.value = "";
    this.#form.hidden = true;
    this.#waiting?.resolve();
    this.#waiting = null;
  }

  /** @param {string} value */
  #set(value) {
    this.value = value;
    this.#inUse.hidden = value === "";
    try {
      if (value) sessionStorage.setItem(key, value);
      else sessionStorage.removeItem(key);
    } catch {
      // Storage is switched off: the token lives as long as the page.
    }
  }
}

function stored() {
  try {
    return sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}
