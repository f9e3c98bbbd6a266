import { describe, expect, it } from 'vitest';
import { LOST_MS, POLL_MS, STALE_MS, freshness, oldest } from '../src/fresh';

describe('freshness', () => {
  it('is loading until the first answer', () => {
    expect(freshness(null, 60_000)).toBe('loading');
  });

  it('turns with the age of the last answer', () => {
    expect(freshness(1000, 1000)).toBe('live');
    expect(freshness(1000, 1000 + STALE_MS)).toBe('live');
    expect(freshness(1000, 1001 + STALE_MS)).toBe('stale');
    expect(freshness(1000, 1000 + LOST_MS)).toBe('stale');
    expect(freshness(1000, 1001 + LOST_MS)).toBe('lost');
  });

  it('forgives one missed poll, not two', () => {
    expect(freshness(0, 2 * POLL_MS)).toBe('live');
    expect(freshness(0, 3 * POLL_MS)).toBe('stale');
  });
});

describe('a page of several parts', () => {
  it('is as old as its oldest part', () => {
    expect(oldest([3000, 1000, 2000])).toBe(1000);
  });

  it('has no age while a part is missing, or without parts', () => {
    expect(oldest([3000, null])).toBeNull();
    expect(oldest([])).toBeNull();
  });
});
