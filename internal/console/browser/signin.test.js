// Sign-in at an authorization server: what happens between the button and the first answer, what an
// issuer may do wrong, and where the tokens are.
import { after, afterEach, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { startAuthorizationServer } from "./iam.js";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo } from "./stage.js";

const forms = { light: ["light", 1280], dark: ["dark", 1280], narrow: ["light", 380], "narrow-dark": ["dark", 380] };

describe("sign-in", { skip: missing }, () => {
  let iam, demo, browser;
  before(async () => {
    [iam, browser] = await Promise.all([startAuthorizationServer(), startBrowser()]);
    demo = await startDemo({ AUTH_ISSUER: iam.url, AUTH_AUDIENCE: iam.audience, CONSOLE_OIDC_CLIENT_ID: "console", DISCONNECT_GRACE: "5m" });
    iam.redirectURI = demo.url;
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
    await iam?.stop();
  });
  afterEach(() => Object.assign(iam, { lifetime: 600, audience: "answerd-demo", refreshes: true, respond: (response) => response, answer: null, redirectURI: demo.url, authorizations: [], exchanges: [] }));

  const button = (page) => page.getByRole("button", { name: "Sign in", exact: true });
  /** Without what a sign-in cannot do without: refusals of the service, and requests to the issuer. */
  const others = (faults) => faults.filter((f) => !f.includes("401") && !f.startsWith(`request to ${iam.url}`));
  const connected = (page) => page.locator('.server[data-state="connected"]').waitFor();

  async function signIn(page) {
    await button(page).click();
    await page.getByRole("button", { name: "Sign in as Ada" }).click();
    await page.waitForURL(`${new URL(iam.redirectURI).origin}/**`);
  }

  it("is offered before the field for a token, in all forms", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await button(page).waitFor();
    assert.equal(await button(page).evaluate((node) => node === document.activeElement), true);
    assert.equal(await page.getByLabel("Bearer token").isVisible(), false);
    for (const [form, [colorScheme, width]] of Object.entries(forms)) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      await shoot(page, `15-sign-in-${form}`);
    }
    await page.getByRole("button", { name: "Use a token instead" }).press("Enter");
    assert.equal(await page.getByLabel("Bearer token").evaluate((node) => node === document.activeElement), true);
    await accessible(page);
    await fits(page);
    assert.deepEqual(others(faults), []);
    await close();
  });

  it("leads to the page where it began, and its secrets go nowhere else", async () => {
    const { page, faults, close } = await openPage(browser, `${demo.url}#thread-none`);
    const requests = [];
    page.on("request", (r) => requests.push({ url: r.url(), headers: JSON.stringify(r.headers()), body: r.postData() ?? "" }));
    await signIn(page);
    await connected(page);
    assert.equal(page.url(), `${demo.url}#thread-none`);
    assert.equal(await page.evaluate(() => history.state), null);
    const [asked] = iam.authorizations;
    assert.deepEqual({ ...asked, state: "", code_challenge: "" }, { response_type: "code", client_id: "console", redirect_uri: demo.url, state: "", code_challenge: "", code_challenge_method: "S256", scope: "openid", audience: "answerd-demo" });
    assert.match(asked.state, /^[\w-]{43}$/);
    const [{ form, headers }] = iam.exchanges;
    assert.deepEqual(Object.keys(form).sort(), ["client_id", "code", "code_verifier", "grant_type", "redirect_uri"]);
    assert.deepEqual([headers.cookie, headers.referer, headers.authorization], [undefined, undefined, undefined]);
    await ask(page, "What is 2 + 3?");
    await answered(page);

    const [token, refresh] = iam.tokens.slice(-2);
    const places = { token: requests.filter((r) => (r.url + r.headers + r.body).includes(token)), refresh: requests.filter((r) => (r.url + r.headers + r.body).includes(refresh)), verifier: requests.filter((r) => (r.url + r.headers + r.body).includes(form.code_verifier)), code: requests.filter((r) => (r.url + r.headers + r.body).includes(form.code)) };
    assert.ok(places.token.length > 2 && places.token.every((r) => r.url.startsWith(demo.url) && !(r.url + r.body).includes(token)), "the token is in the header of requests to the service only");
    assert.deepEqual(places.refresh, []);
    assert.deepEqual(places.verifier.map((r) => r.url), [`${iam.url}/token`]);
    assert.deepEqual(places.code.map((r) => r.url.split("?")[0]), [demo.url, `${iam.url}/token`]);
    assert.deepEqual([...new Set(requests.map((r) => new URL(r.url)).filter((u) => u.origin === iam.url).map((u) => u.pathname))], ["/authorize", "/token"]);
    const kept = await page.evaluate(() => ({ session: Object.keys(sessionStorage).sort(), rest: JSON.stringify(localStorage) + document.cookie + document.documentElement.outerHTML + location.href }));
    assert.deepEqual(kept.session, ["answerd.refresh", "answerd.token"]);
    for (const secret of [token, refresh, form.code, form.code_verifier, asked.state]) assert.ok(!kept.rest.includes(secret));
    await page.reload();
    await connected(page); // without being asked again
    assert.equal(iam.exchanges.length, 1);
    assert.deepEqual(others(faults).filter((f) => !f.includes("status of 404")), []); // there is no such conversation
    await close();
  });

  it("ends with a sign-out, which leads to that of the issuer", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await signIn(page);
    await connected(page);
    await page.getByText("You are signed in.").waitFor();
    await ask(page, "What is 2 + 3?");
    await answered(page);
    await page.locator(".thread").first().waitFor();
    await accessible(page);
    await shoot(page, "15-signed-in");
    await page.getByRole("button", { name: "Sign out" }).click();
    const link = page.getByRole("link", { name: "sign out there too" });
    await link.waitFor();
    assert.equal(page.url(), demo.url);
    assert.deepEqual(await page.evaluate(() => [sessionStorage.length, document.cookie]), [0, ""]);
    assert.deepEqual(await Promise.all([".server", ".thread", ".turn"].map((part) => page.locator(part).count())), [0, 0, 0]);
    assert.equal(await page.evaluate(() => localStorage.length), 0);
    await accessible(page);
    await shoot(page, "15-signed-out");
    await link.click();
    await page.getByText("You are signed out.", { exact: true }).waitFor();
    assert.equal(page.url(), `${iam.url}/logout?client_id=console`);
    assert.deepEqual(others(faults), []);
    await close();
  });

  it("is renewed when the token expires, and a run goes on where it was", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    iam.lifetime = 6;
    await signIn(page);
    await connected(page);
    await ask(page, "Write a slow report about tea in 8 steps of 1500 ms");
    await answered(page);
    assert.ok(iam.exchanges.length >= 2 && iam.exchanges.slice(1).every((e) => e.form.grant_type === "refresh_token"), "renewed with the refresh token");
    assert.match(await page.locator(".text").innerText(), /Report about tea/);
    assert.deepEqual(await Promise.all([".turn", ".call", ".text", ".metadata"].map((part) => page.locator(part).count())), [1, 1, 1, 1]);
    assert.equal(await page.locator("#token-form").isVisible(), false);
    assert.deepEqual(others(faults), []);
    await close();
  });

  it("is asked for again when the issuer renews nothing", async () => {
    const { page, close } = await openPage(browser, demo.url);
    [iam.lifetime, iam.refreshes] = [4, false];
    await signIn(page);
    await connected(page);
    await ask(page, "Write a slow report about tea in 8 steps of 1500 ms");
    await page.getByText("Your token has expired.").waitFor();
    await accessible(page);
    iam.lifetime = 600;
    await signIn(page);
    await answered(page); // the conversation that the person left, and its run
    await page.locator(".call").first().waitFor();
    assert.equal(await page.locator(".call").count(), 1);
    assert.match(await page.locator(".text").innerText(), /Report about tea/);
    await close();
  });

  it("asks once, and again for a person, if the service refuses what the issuer gives", async () => {
    const { page, close } = await openPage(browser, demo.url);
    iam.audience = "another-service";
    await signIn(page);
    await page.getByText("The token was not accepted.").waitFor();
    assert.equal(iam.exchanges.length, 1);
    iam.audience = "answerd-demo";
    await signIn(page);
    await connected(page);
    await close();
  });

  const hostile = '<img src=x onerror=alert(1)>\u202e';
  for (const [name, change, says] of [
    ["another state", { respond: (r) => ({ ...r, state: "x" }) }, /not started in this tab/],
    ["another issuer", { respond: (r) => ({ ...r, iss: "https://other.example" }) }, /from another issuer/],
    ["no issuer although it says that there is one", { respond: ({ iss: _, ...r }) => r }, /from another issuer/],
    ["a refusal", { respond: ({ state, iss }) => ({ state, iss, error: "access_denied" }) }, /refused or cancelled/],
    ["an error that is markup", { respond: ({ state, iss }) => ({ state, iss, error: hostile, error_description: hostile }) }, /The issuer says: <img src=x onerror=alert\(1\)>\\u\{202e\}/],
    ["an error at the token endpoint", { answer: { status: 400, body: { error: "invalid_grant", error_description: "The code has expired." } } }, /The code has expired\. \(invalid_grant\)/],
    ["something else than a token", { answer: { status: 200, body: { access_token: "a b", token_type: "Bearer" } } }, /not a bearer token/],
    ["a token of another type", { answer: { status: 200, body: { access_token: "abc", token_type: "DPoP" } } }, /not a bearer token/],
    ["no object", { answer: { status: 200, body: null } }, /not a bearer token/],
  ]) {
    it(`says so when the issuer gives ${name}, and works when tried again`, async () => {
      const { page, faults, close } = await openPage(browser, demo.url);
      Object.assign(iam, change);
      await signIn(page);
      const problem = page.locator("#sign-in-failure");
      await page.waitForFunction(() => document.querySelector("#sign-in-failure").textContent !== "");
      assert.match(await problem.innerText(), says);
      assert.equal(page.url(), demo.url);
      assert.deepEqual(await page.evaluate(() => Object.keys(sessionStorage)), []);
      await button(page).waitFor();
      await accessible(page);
      if (name === "a refusal") await shoot(page, "15-sign-in-refused");
      Object.assign(iam, { respond: (r) => r, answer: null });
      await signIn(page);
      await connected(page);
      assert.deepEqual(others(faults).filter((f) => !f.includes("status of 400")), []);
      await close();
    });
  }

  it("takes a response once, and none that nobody asked for", async () => {
    const { page, close } = await openPage(browser, `${demo.url}?code=abc&state=def`);
    await page.getByText("This sign-in was not started in this tab").waitFor();
    assert.equal(page.url(), demo.url);
    assert.equal(iam.exchanges.length, 0);
    await close();
  });

  it("is below the path of PUBLIC_URL", async () => {
    const below = await startDemo({ AUTH_ISSUER: iam.url, AUTH_AUDIENCE: iam.audience, CONSOLE_OIDC_CLIENT_ID: "console", PUBLIC_URL: "http://127.0.0.1:1/apps/ask" });
    try {
      iam.redirectURI = `${below.url}apps/ask/`;
      const { page, close } = await openPage(browser, iam.redirectURI);
      await signIn(page);
      await connected(page);
      assert.equal(page.url(), iam.redirectURI);
      assert.equal(iam.authorizations[0].redirect_uri, iam.redirectURI);
      await close();
    } finally {
      await below.stop();
    }
  });
});

describe("sign-in at an issuer that is down", { skip: missing }, () => {
  it("is not offered, and a token works", async () => {
    const [iam, browser] = await Promise.all([startAuthorizationServer(), startBrowser()]);
    const demo = await startDemo({ AUTH_ISSUER: "http://127.0.0.1:1", AUTH_AUDIENCE: "answerd-demo", AUTH_JWKS_URL: `${iam.url}/jwks`, CONSOLE_OIDC_CLIENT_ID: "console" });
    try {
      const { page, close } = await openPage(browser, demo.url);
      await page.getByText("You cannot sign in at this time").waitFor();
      await page.getByLabel("Bearer token").waitFor();
      assert.equal(await page.getByRole("button", { name: "Sign in", exact: true }).isVisible(), false);
      await accessible(page);
      await close();
    } finally {
      await browser.close();
      await demo.stop();
      await iam.stop();
    }
  });
});
