// Bundles src/ into dist/, which is embedded in r1. `--check` compares dist/ with a new bundle
// instead of writing it.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const read = (name) => readFileSync(join(root, name));

/** The licences of the libraries, which their copies must have. */
function licences() {
  const text = (name) => `${name}\n\n${read(`node_modules/${name}/LICENSE`)}`.replaceAll("\r", "").trim();
  return `/*\nThe page of r1 view contains these libraries.\n\n${["preact", "uplot"].map(text).join("\n\n")}\n*/`;
}

const result = await build({
  absWorkingDir: root,
  entryPoints: { app: "src/main.tsx" },
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  banner: { js: licences() },
  write: false,
});
const files = Object.fromEntries(result.outputFiles.map((file) => [file.path.split(/[\\/]/).pop(), file.contents]));
files["index.html"] = read("src/index.html");

// The sources, so that a test without Node sees whether dist/ is made from them
// (src/view/page.rs).
const sum = createHash("sha256");
const sources = readdirSync(join(root, "src")).sort().map((name) => `src/${name}`);
for (const name of ["build.mjs", "package-lock.json", "tsconfig.json", ...sources]) {
  const bytes = read(name);
  sum.update(`${name}\0${bytes.length}\0`);
  sum.update(bytes);
}
files["sources.sha256"] = `${sum.digest("hex")}\n`;

mkdirSync(join(root, "dist"), { recursive: true });
let differ = 0;
for (const [name, bytes] of Object.entries(files)) {
  const path = join(root, "dist", name);
  if (!process.argv.includes("--check")) {
    writeFileSync(path, bytes);
    console.log(`dist/${name}  ${bytes.length} bytes`);
  } else if (!Buffer.from(bytes).equals(readFileSync(path))) {
    console.error(`view/dist/${name} is not made from view/src: run \`just view\``);
    differ += 1;
  }
}
process.exit(differ ? 1 : 0);
