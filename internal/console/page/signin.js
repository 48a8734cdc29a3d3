// @ts-check
// Sign-in at the issuer of the service's tokens: authorization code with PKCE (RFC 6749 section 4.1,
// RFC 7636), for a public client whose redirect URI is this page's URL.
import { visible } from "./element.js";

/** What the operator has configured, and the issuer's metadata says. A problem stands alone.
 * @typedef {{problem?: string, issuer: string, client_id: string, authorization_endpoint: string, token_endpoint: string,
 *   end_session_endpoint?: string, iss_in_response: boolean, scope: string, audience: string}} Configuration
 *
 * refresh is "" if the issuer gives no refresh token.
 * @typedef {{token: string, refresh: string}} Tokens
 *
 * What must be the same when the person comes back, and the fragment that they left.
 * @typedef {{state: string, verifier: string, issuer: string, hash: string}} Pending
 */

const pendingKey = "answerd.sign-in";
const patience = 15_000; // ms that the token endpoint may take
const mostText = 500; // characters of what the issuer says

/** Why nobody is signed in, for the person. */
export class SignInError extends Error {}

/** Returns the configuration of this page; null if people paste a token. */
export function configured() {
  const text = document.querySelector('meta[name="sign-in"]')?.getAttribute("content");
  return text ? /** @type {Configuration} */ (JSON.parse(text)) : null;
}

/** Sends people to the issuer and takes the tokens that they come back for. */
export class SignIn {
  #configuration;

  /** @param {Configuration} configuration without a problem */
  constructor(configuration) {
    this.#configuration = configuration;
  }

  /** The issuer's host, as people know it. */
  get host() {
    return new URL(this.#configuration.authorization_endpoint).host;
  }

  /** Where the person's session at the issuer ends; "" if the issuer has no such page. */
  get endSession() {
    const { end_session_endpoint: endpoint, client_id: client } = this.#configuration;
    return endpoint ? withParameters(endpoint, { client_id: client }) : "";
  }

  /** Leaves this page for the issuer's. */
  async start() {
    if (!globalThis.crypto?.subtle) throw new SignInError("You can sign in only if this page is loaded over https.");
    const { authorization_endpoint: endpoint, client_id: client, issuer, scope, audience } = this.#configuration;
    const [state, verifier] = [random(), random()];
    try {
      sessionStorage.setItem(pendingKey, JSON.stringify({ state, verifier, issuer, hash: location.hash }));
    } catch {
      throw new SignInError("You cannot sign in while this browser stores nothing for this page.");
    }
    const challenge = encodeBase64URL(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
    location.assign(withParameters(endpoint, {
      response_type: "code", client_id: client, redirect_uri: redirectURI(), state, code_challenge: challenge, code_challenge_method: "S256",
      scope, audience, resource: resourceOf(audience),
    }));
  }

  /**
   * Takes the issuer's response out of the page's URL and returns the tokens for it; null if there is no
   * response. The URL is clean when it returns its promise.
   *
   * @returns {Promise<Tokens | null>}
   * @throws {SignInError}
   */
  async finish() {
    const response = new URLSearchParams(location.search);
    if (!response.has("state") || !(response.has("code") || response.has("error"))) return null;
    const pending = takePending();
    history.replaceState(null, "", location.pathname + (pending?.hash ?? ""));
    const { issuer, iss_in_response: hasIssuer } = this.#configuration;
    if (!pending || response.getAll("state").length !== 1 || response.get("state") !== pending.state) {
      throw new SignInError("This sign-in was not started in this tab, or was already completed. Please sign in again.");
    }
    // RFC 9207: a response of another issuer is no response to this request.
    const iss = response.getAll("iss");
    if (pending.issuer !== issuer || iss.length > 1 || (iss.length === 1 ? iss[0] !== issuer : hasIssuer)) {
      throw new SignInError("The response to this sign-in comes from another issuer.");
    }
    const code = response.get("code");
    if (response.has("error") || !code) throw new SignInError(said(response.get("error"), response.get("error_description")));
    return this.#request({ grant_type: "authorization_code", code, redirect_uri: redirectURI(), code_verifier: pending.verifier });
  }

  /**
   * Returns new tokens.
   *
   * @param {string} refresh
   * @returns {Promise<Tokens>}
   * @throws {SignInError}
   */
  async refresh(refresh) {
    const tokens = await this.#request({ grant_type: "refresh_token", refresh_token: refresh });
    return { token: tokens.token, refresh: tokens.refresh || refresh };
  }

  /**
   * @param {Record<string, string>} parameters
   * @returns {Promise<Tokens>}
   */
  async #request(parameters) {
    const { token_endpoint: endpoint, client_id: client, audience } = this.#configuration;
    const resource = resourceOf(audience);
    const body = new URLSearchParams({ ...parameters, client_id: client, ...(resource && { resource }) });
    let response, reply;
    try {
      response = await fetch(endpoint, {
        method: "POST", body, headers: { Accept: "application/json" }, credentials: "omit", redirect: "error", cache: "no-store", referrerPolicy: "no-referrer",
        signal: AbortSignal.timeout(patience),
      });
      reply = await response.json();
    } catch {
      throw new SignInError(`${this.host} gave no token: it cannot be reached, or does not let pages of this origin ask (CORS).`);
    }
    if (!response.ok) throw new SignInError(said(reply?.error, reply?.error_description));
    const { access_token: token, token_type: type, refresh_token: next = "" } = reply ?? {};
    // Anything else cannot stand in a header.
    if (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token) || String(type).toLowerCase() !== "bearer" || typeof next !== "string") {
      throw new SignInError(`${this.host} gave something that is not a bearer token.`);
    }
    return { token, refresh: next };
  }
}

/** This page, as the issuer must know it. */
function redirectURI() {
  return location.origin + location.pathname;
}

/** RFC 8707 takes an absolute URI. Of those, issuers expect https URLs: some refuse others that they call an audience.
 * @param {string} audience
 */
function resourceOf(audience) {
  return URL.canParse(audience) && new URL(audience).protocol === "https:" && !audience.includes("#") ? audience : "";
}

/**
 * @param {string} address may have a query
 * @param {Record<string, string>} parameters those that are "" are left out
 */
function withParameters(address, parameters) {
  const url = new URL(address);
  for (const [name, value] of Object.entries(parameters)) if (value) url.searchParams.set(name, value);
  return url.href;
}

/** @returns {Pending | null} it can be taken once */
function takePending() {
  try {
    const text = sessionStorage.getItem(pendingKey);
    sessionStorage.removeItem(pendingKey);
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

/**
 * What the issuer says, for the person: it is text of others.
 *
 * @param {unknown} error
 * @param {unknown} description
 */
function said(error, description) {
  if (error === "access_denied" && !description) return "You were not signed in: the sign-in was refused or cancelled.";
  const code = typeof error === "string" ? error : "unknown error";
  const text = typeof description === "string" && description !== "" ? `${description} (${code})` : code;
  return `You were not signed in. The issuer says: ${visible(text.slice(0, mostText))}`;
}

function random() {
  return encodeBase64URL(crypto.getRandomValues(new Uint8Array(32)));
}

/** @param {ArrayBuffer | Uint8Array} bytes */
function encodeBase64URL(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}
