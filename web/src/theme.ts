// Light, dark, or what the system says. `public/theme.js` applies the stored choice before the first paint.

import { signal } from '@preact/signals';

export type Theme = 'auto' | 'light' | 'dark';

const KEY = 'handover.theme';
const ORDER: readonly Theme[] = ['auto', 'light', 'dark'];

function chosen(): Theme {
  const value = document.documentElement.dataset['theme'];
  return value === 'light' || value === 'dark' ? value : 'auto';
}

export const theme = signal<Theme>('auto');

export function startTheme(): void {
  theme.value = chosen();
}

export function nextTheme(): void {
  const next = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? 'auto';
  theme.value = next;
  if (next === 'auto') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Storage may be switched off: the choice then lasts as long as the page.
  }
}
