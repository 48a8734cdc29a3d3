// @ts-check
// The bearer token of this tab: pasted, or from a sign-in. And the form that asks for it.
import { configured, SignIn, SignInError } from "./signin.js";

const tokenKey = "answerd.token";
const refreshKey = "answerd.refresh";
const signedOut = "#signed-out"; // the fragment of the page after a sign-out

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @returns {T}
 */
const byID = (id) => /** @type {T} */ (document.getElementById(id));

/** The token of this tab. It is asked for once, however many requests wait for it. */
export class Token {
  value = stored(tokenKey);
  /** Is settled when a sign-in that the page was loaded for is complete, or has failed.
   * @type {Promise<void>} */
  ready;
  #refresh = stored(refreshKey); // "" for a token that was pasted
  // A token of the issuer that the service refuses at once is not renewed: that would go on for ever.
  #worked = true;
  /** @type {SignIn | null} */
  #signIn = null;
  #form = /** @type {HTMLFormElement} */ (byID("token-form"));
  #field = /** @type {HTMLInputElement} */ (byID("token"));
  #reason = byID("token-reason");
  #failure = byID("sign-in-failure");
  #paste = byID("token-paste");
  /** @type {PromiseWithResolvers<void> | null} */
  #waiting = null;
  /** @type {Promise<boolean> | null} the request for new tokens in flight */
  #renewing = null;

  constructor() {
    const configuration = configured();
    if (configuration?.problem) this.#fail(configuration.problem);
    else if (configuration) this.#offer(new SignIn(configuration));
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#take();
    });
    byID("token-forget").addEventListener("click", () => this.#forget());
    this.#show();
    this.ready = this.#finish();
  }

  /**
   * Gets another token: from the issuer, or from the person. Then it shows the form and waits until it
   * has been filled in.
   *
   * @param {string} reason why, for the reader
   * @param {AbortSignal | null} [signal] ends the waiting, not the asking
   * @returns {Promise<void>}
   */
  async ask(reason, signal) {
    if (await this.#renew()) return;
    if (!this.#waiting) {
      this.#reason.textContent = this.#signIn && this.value === "" ? "Sign in to ask questions." : reason; // the first one: later requests fail because of it
      this.#waiting = Promise.withResolvers();
      this.#form.hidden = false;
      (this.#paste.hidden ? byID("sign-in") : this.#field).focus({ preventScroll: true }); // the form is in view wherever the page stands
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

  /** Notes that the service has taken the token. @param {string} token */
  accepted(token) {
    if (token === this.value) this.#worked = true;
  }

  /** Shows the button that leads to the issuer, before the field for a token. @param {SignIn} signIn */
  #offer(signIn) {
    this.#signIn = signIn;
    byID("sign-in-box").hidden = false;
    byID("sign-in-host").textContent = `at ${signIn.host}`;
    this.#paste.hidden = true;
    const use = byID("token-use");
    use.addEventListener("click", () => {
      this.#paste.hidden = false;
      use.hidden = true;
      this.#field.focus();
    });
    byID("sign-in").addEventListener("click", () => signIn.start().catch((error) => this.#fail(reasonOf(error))));
  }

  /** Completes the sign-in that the page was loaded for, if it was. */
  async #finish() {
    if (location.hash === signedOut) this.#showSignedOut();
    try {
      const tokens = await this.#signIn?.finish();
      if (tokens) this.#set(tokens.token, tokens.refresh);
    } catch (error) {
      this.#fail(reasonOf(error));
    }
  }

  /** Gets a new token without the person. Requests that need one at the same time wait for the same. */
  #renew() {
    if (!this.#signIn || !this.#refresh || !this.#worked) return false;
    this.#renewing ??= this.#signIn.refresh(this.#refresh).then(
      (tokens) => {
        this.#set(tokens.token, tokens.refresh);
        return true;
      },
      () => {
        this.#refresh = ""; // until a reload: the person signs in again, or the issuer would be asked without end
        return false;
      },
    ).finally(() => (this.#renewing = null));
    return this.#renewing;
  }

  #take() {
    const value = this.#field.value.trim().replace(/^Bearer\s+/i, "");
    // Anything else cannot stand in a header, and fetch would call it a lost connection.
    if (!/^[\x21-\x7e]+$/.test(value)) {
      this.#reason.textContent = "This cannot be a token: it has blanks or characters beyond ASCII.";
      return;
    }
    this.#set(value, "");
    this.#field.value = "";
    this.#form.hidden = true;
    this.#failure.hidden = true;
    this.#waiting?.resolve();
    this.#waiting = null;
  }

  /** Forgets the tokens. After a sign-in the page is loaded again, so that nothing of the person stays on it. */
  #forget() {
    this.#set("", "");
    if (!this.#signIn) return;
    history.replaceState(null, "", location.pathname + signedOut);
    location.reload();
  }

  /** Says that the session at the issuer may go on, and where it ends. */
  #showSignedOut() {
    history.replaceState(null, "", location.pathname);
    const address = this.#signIn?.endSession;
    byID("signed-out").hidden = !address;
    if (address) /** @type {HTMLAnchorElement} */ (byID("end-session")).href = address;
  }

  /** @param {string} reason why nobody can sign in, or is signed in */
  #fail(reason) {
    this.#failure.textContent = reason;
    this.#failure.hidden = false;
  }

  /** Shows whether there is a token, and the way to get rid of it. */
  #show() {
    byID("signed-in").hidden = this.value === "";
    if (this.#signIn) [byID("signed-in-text").textContent, byID("token-forget").textContent] = ["You are signed in.", "Sign out"];
  }

  /**
   * @param {string} value
   * @param {string} refresh
   */
  #set(value, refresh) {
    this.#worked = false;
    [this.value, this.#refresh] = [value, refresh];
    this.#show();
    try {
      for (const [key, text] of [[tokenKey, value], [refreshKey, refresh]]) {
        if (text) sessionStorage.setItem(key, text);
        else sessionStorage.removeItem(key);
      }
    } catch {
      // Storage is switched off: the tokens live as long as the page.
    }
  }
}

/** @param {unknown} error */
function reasonOf(error) {
  if (error instanceof SignInError) return error.message;
  console.error(error);
  return "This page has a defect, and you are not signed in.";
}

/** @param {string} key */
function stored(key) {
  try {
    return sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}
