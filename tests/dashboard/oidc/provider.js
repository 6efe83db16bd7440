// An OpenID Connect provider on this machine: node provider.js FOLDER PORT REDIRECT. Any name logs in; the part before
// "@" is the person's group. FOLDER has node_modules/oidc-provider.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [folder, port, redirect] = process.argv.slice(2);
const module = await import(pathToFileURL(join(folder, "node_modules/oidc-provider/lib/index.js")).href);
const issuer = `http://127.0.0.1:${port}`;
const provider = new module.default(issuer, {
  clients: [{ client_id: "hansa", client_secret: "a secret of the test", redirect_uris: [redirect] }],
  claims: { openid: ["sub", "groups"] },
  conformIdTokenClaims: false,
  cookies: { keys: ["a key of the test"] },
  findAccount: async (context, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, groups: [id.split("@")[0]] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
