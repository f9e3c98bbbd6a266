import { describe, expect, it } from 'vitest';
import { ago, count, digitGroups, duration, isExact, percent, plain, utc, utcTime } from '../src/format';

describe('numbers', () => {
  it('groups digits by three from the right', () => {
    expect(digitGroups(0)).toEqual(['0']);
    expect(digitGroups(999)).toEqual(['999']);
    expect(digitGroups(1000)).toEqual(['1', '000']);
    expect(digitGroups(1250418)).toEqual(['1', '250', '418']);
    expect(digitGroups(-1610000)).toEqual(['-1', '610', '000']);
    expect(digitGroups(-40)).toEqual(['-40']);
  });

  it('loses and adds no digit, up to the largest exact integer', () => {
    let value = 1;
    for (let step = 0; step < 400; step += 1) {
      value = (value * 48271) % 2147483647;
      const offset = value * (step % 2 === 0 ? 1 : 4194301);
      if (!Number.isSafeInteger(offset)) continue;
      const groups = digitGroups(offset);
      expect(groups.join('')).toBe(String(offset));
      expect(groups.slice(1).every((group) => group.length === 3)).toBe(true);
    }
    expect(digitGroups(Number.MAX_SAFE_INTEGER).join('')).toBe('9007199254740991');
  });

  it('knows which integers survived the way into a double', () => {
    expect(isExact(2 ** 53 - 1)).toBe(true);
    expect(isExact(2 ** 53 + 1)).toBe(false);
  });

  it('never turns unknown into 0', () => {
    expect(plain(null)).toBe('unknown');
    expect(plain(undefined)).toBe('unknown');
    expect(plain(0)).toBe('0');
  });

  it('counts things', () => {
    expect(count(1, 'job')).toBe('1 job');
    expect(count(0, 'job')).toBe('0 jobs');
  });
});

describe('shares', () => {
  it('that are small are not said to be nothing', () => {
    expect(percent(0)).toBe('0 %');
    expect(percent(0.004)).toBe('0.4 %');
    expect(percent(0.826)).toBe('83 %');
    expect(percent(1)).toBe('100 %');
  });
});

describe('times', () => {
  it('says durations in at most two units', () => {
    expect(duration(0)).toBe('0 ms');
    expect(duration(850)).toBe('850 ms');
    expect(duration(14_999)).toBe('14 s');
    expect(duration(185_000)).toBe('3 min 05 s');
    expect(duration(2 * 3_600_000 + 7 * 60_000)).toBe('2 h 07 min');
    expect(duration(76 * 3_600_000)).toBe('3 d 04 h');
  });

  it('does not go below zero when two clocks disagree', () => {
    expect(duration(-5)).toBe('0 ms');
    expect(ago(-5)).toBe('just now');
  });

  it('says ages in whole seconds', () => {
    expect(ago(999)).toBe('just now');
    expect(ago(8100)).toBe('8 s ago');
  });

  it('shows instants in UTC whatever zone they were written in', () => {
    expect(utc('2026-11-28T02:00:00+01:00')).toBe('2026-11-28 01:00:00Z');
    expect(utc('2026-11-29T07:44:50.120Z')).toBe('2026-11-29 07:44:50Z');
    expect(utc('yesterday')).toBeNull();
    expect(utc(null)).toBeNull();
    expect(utcTime(Date.UTC(2026, 10, 29, 7, 4, 5))).toBe('07:04:05Z');
  });
});
