// Paths under /ui/ and the history of the browser; no hash, so every page has an address that can be sent to a colleague.

import { signal } from '@preact/signals';

const BASE = import.meta.env.BASE_URL;

export type Route = { page: 'jobs' } | { page: 'job'; job: string } | { page: 'none'; path: string };

/** The page behind a path. `base` ends with a slash. */
export function parse(path: string, base: string = BASE): Route {
  const rest = path.startsWith(base) ? path.slice(base.length) : path === base.slice(0, -1) ? '' : null;
  if (rest === null) return { page: 'none', path };
  const parts = rest.split('/').filter((part) => part !== '');
  if (parts.length === 0 || (parts.length === 1 && parts[0] === 'jobs')) return { page: 'jobs' };
  if (parts.length === 2 && parts[0] === 'jobs' && parts[1] !== undefined) {
    try {
      return { page: 'job', job: decodeURIComponent(parts[1]) };
    } catch {
      return { page: 'none', path };
    }
  }
  return { page: 'none', path };
}

export const jobsPath = (): string => BASE;
export const jobPath = (job: string): string => `${BASE}jobs/${encodeURIComponent(job)}`;

/** The address now shown. */
export const location = signal(readLocation());

function readLocation(): { path: string; query: URLSearchParams } {
  // Unit tests of the pure parts have no window.
  if (typeof window === 'undefined') return { path: BASE, query: new URLSearchParams() };
  return { path: window.location.pathname, query: new URLSearchParams(window.location.search) };
}

/** Change one query parameter in place: a view option is part of the address, but not a step of the history. */
export function setQuery(name: string, value: string | null): void {
  const url = new URL(window.location.href);
  if (value === null) url.searchParams.delete(name);
  else url.searchParams.set(name, value);
  history.replaceState(history.state, '', url);
  location.value = readLocation();
}

let moved = false;
/** Whether the reader has gone from one page to another: then the new heading gets the focus, as after a page load. */
export const hasMoved = (): boolean => moved;

/** Take over plain clicks on links of the UI; clicks that open a tab or a window stay the browser's. */
export function listen(): void {
  window.addEventListener('popstate', () => {
    moved = true;
    location.value = readLocation();
  });
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest('a') : null;
    if (link === null || link.target !== '' || link.origin !== window.location.origin) return;
    if (parse(link.pathname).page === 'none') return;
    event.preventDefault();
    moved = true;
    if (link.href !== window.location.href) history.pushState(null, '', link.href);
    location.value = readLocation();
    window.scrollTo(0, 0);
  });
}
