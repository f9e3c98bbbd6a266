// The wall that keeps the pages small: everything that is built, gzip -9, against 120 KB.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const WALL = 120 * 1024;
const dist = fileURLToPath(new URL('../dist/', import.meta.url));

let names;
try {
  names = readdirSync(dist, { recursive: true }).filter((name) => statSync(join(dist, name)).isFile());
} catch {
  console.error('size: web/dist is missing, run `npm run build` first');
  process.exit(1);
}
let total = 0;
for (const name of names.sort()) {
  const size = gzipSync(readFileSync(join(dist, name)), { level: 9 }).length;
  total += size;
  console.log(`${String(size).padStart(8)}  ${name}`);
}
console.log(`${String(total).padStart(8)}  of ${WALL} bytes (gzip -9)`);
if (total > WALL) {
  console.error(`size: ${total - WALL} bytes too many`);
  process.exit(1);
}
