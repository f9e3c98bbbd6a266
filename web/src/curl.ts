// The command line that shows what a page shows.

/** A POSIX shell word: as it is where that is safe, else in single quotes. */
export function shellWord(text: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`;
}

/** The GET behind a view. */
export function curlGet(origin: string, path: string): string {
  return `curl -sS --fail-with-body ${shellWord(origin + path)}`;
}
