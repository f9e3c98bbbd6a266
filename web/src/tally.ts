// The jobs in one line: how many there are, in which states, and how many of them need a look.

import type { JobItem } from './api';
import { count } from './format';
import { toneOfHealth } from './tone';

export function tally(items: readonly Pick<JobItem, 'state' | 'health'>[]): string {
  const states = new Map<string, number>();
  let need = 0;
  for (const item of items) {
    states.set(item.state, (states.get(item.state) ?? 0) + 1);
    const tone = toneOfHealth(item.health.status);
    if (tone === 'warn' || tone === 'bad' || item.state === 'failed') need += 1;
  }
  const parts = [...states].map(([state, n]) => `${n} ${state}`);
  const attention = need === 0 ? 'none needs attention' : `${need} ${need === 1 ? 'needs' : 'need'} attention`;
  return items.length === 0 ? '' : [count(items.length, 'job'), ...parts, attention].join(' · ');
}
