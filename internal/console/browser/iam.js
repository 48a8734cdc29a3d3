// An authorization server with a login page, for pages that sign in: authorization code with PKCE.
import { createHash, randomBytes } from "node:crypto";
import { text } from "node:stream/consumers";
import { startIssuer } from "./stage.js";

const random = () => randomBytes(16).toString("base64url");
const escape = (value) => value.replace(/[&<>"]/g, (c) => `&#${c.codePointAt(0)};`);

/**
 * Starts it. Tests change what it does:
 *
 * - redirectURI: of the one client, "console", exactly;
 * - audience and lifetime (seconds) of its tokens, and whether there are refresh tokens;
 * - respond(parameters): changes the authorization response; answer: what the token endpoint says instead.
 */
export async function startAuthorizationServer() {
  const iam = { redirectURI: "", audience: "answerd-demo", lifetime: 600, refreshes: true, respond: (response) => response, answer: null, authorizations: [], exchanges: [], url: "", stop: null, tokens: [] };
  const codes = new Map(); // what each was requested with
  const refreshTokens = new Set();

  const pages = {
    "/.well-known/oauth-authorization-server": () => json({
      issuer: iam.url, authorization_endpoint: `${iam.url}/authorize`, token_endpoint: `${iam.url}/token`, jwks_uri: `${iam.url}/jwks`, end_session_endpoint: `${iam.url}/logout`,
      code_challenge_methods_supported: ["S256"], authorization_response_iss_parameter_supported: true, scopes_supported: ["openid"],
    }),
    "/authorize": authorize,
    "/token": exchange,
    "/logout": () => html("<p>You are signed out.</p>"),
    "/favicon.ico": () => ({ status: 204, headers: {}, body: "" }),
  };
  const issuer = await startIssuer((request, reply) => {
    const url = new URL(request.url, "http://iam.example");
    const page = pages[url.pathname];
    if (!page) return false;
    void text(request).then((body) => page(url.searchParams, new URLSearchParams(body), request)).then(({ status, headers, body }) => reply.writeHead(status, headers).end(body));
    return true;
  });
  Object.assign(iam, { url: issuer.url, stop: issuer.stop });

  function authorize(asked, _, request) {
    const one = (name) => (asked.getAll(name).length === 1 ? asked.get(name) : "");
    if (one("client_id") !== "console" || one("redirect_uri") !== iam.redirectURI) return { ...html("<p>No such client</p>"), status: 400 };
    if (request.method === "GET") {
      iam.authorizations.push(Object.fromEntries(asked));
      const action = escape(`/authorize?${asked}`);
      return html(`<form method="post" action="${action}"><button>Sign in as Ada</button></form>`);
    }
    const bad = one("response_type") !== "code" || one("code_challenge_method") !== "S256" || one("code_challenge").length !== 43 || one("state") === "";
    const code = random();
    codes.set(code, asked);
    const response = iam.respond({ state: one("state"), iss: iam.url, ...(bad ? { error: "invalid_request" } : { code }) });
    return { status: 303, headers: { Location: `${iam.redirectURI}?${new URLSearchParams(response)}` }, body: "" };
  }

  function exchange(_, form, request) {
    const headers = { "Access-Control-Allow-Origin": new URL(iam.redirectURI).origin, "Content-Type": "application/json", "Cache-Control": "no-store" };
    if (request.method === "OPTIONS") return { status: 204, headers, body: "" };
    iam.exchanges.push({ form: Object.fromEntries(form), headers: request.headers });
    if (iam.answer) return { ...json(iam.answer.body), status: iam.answer.status, headers };
    const refused = { ...json({ error: "invalid_grant" }), status: 400, headers };
    if (form.get("client_id") !== "console") return refused;
    if (form.get("grant_type") === "refresh_token") {
      if (!refreshTokens.delete(form.get("refresh_token"))) return refused;
    } else {
      const asked = codes.get(form.get("code"));
      codes.delete(form.get("code"));
      const challenge = createHash("sha256").update(form.get("code_verifier") ?? "").digest("base64url");
      if (form.get("grant_type") !== "authorization_code" || asked?.get("code_challenge") !== challenge || form.get("redirect_uri") !== asked.get("redirect_uri")) return refused;
    }
    const token = issuer.token(iam.audience, iam.lifetime);
    iam.tokens.push(token);
    const reply = { access_token: token, token_type: "Bearer", expires_in: iam.lifetime };
    if (iam.refreshes) {
      reply.refresh_token = random();
      refreshTokens.add(reply.refresh_token);
      iam.tokens.push(reply.refresh_token);
    }
    return { ...json(reply), headers };
  }
  return iam;
}

function json(value) {
  return { status: 200, headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) };
}

function html(body) {
  return { status: 200, headers: { "Content-Type": "text/html" }, body: `<!doctype html><title>IAM</title>${body}` };
}
