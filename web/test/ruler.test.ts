import { describe, expect, it } from 'vitest';
import { decadesFor, endOf, place, rulerOf, sentence, ticks, untilDeletion, type Offsets } from '../src/ruler';

const row = (offsets: Partial<Offsets>): Offsets => ({
  earliest: 1200,
  group_committed: 8500,
  checkpointed: 8540,
  position: 9000,
  readable_end: 9750,
  latest: 9750,
  ...offsets,
});
const nothing: Offsets = {
  earliest: null, group_committed: null, checkpointed: null, position: null, readable_end: null, latest: null,
};

describe('the axis', () => {
  it('puts the end at the right edge and each power of ten one decade further left', () => {
    expect(place(0, 6)).toBe(1);
    expect(place(10 ** 6 - 1, 6)).toBeCloseTo(0);
    expect(place(999, 6)).toBeCloseTo(0.5);
  });

  it('keeps the order of offsets at every distance', () => {
    let last = 2;
    for (let distance = 0; distance < 10 ** 12; distance = distance * 3 + 1) {
      const x = place(distance, 12);
      expect(x).toBeLessThan(last);
      expect(x).toBeGreaterThanOrEqual(0);
      last = x;
    }
  });

  it('draws what lies outside at the edge', () => {
    expect(place(-50, 6)).toBe(1);
    expect(place(10 ** 9, 6)).toBe(0);
  });

  it('has a tick for each decade and for the end, from left to right', () => {
    const marks = ticks(3);
    expect(marks.map((mark) => mark.label)).toEqual(['10³', '10²', '10¹', '0']);
    expect(marks[0]?.x).toBeCloseTo(0);
    expect(marks[3]?.x).toBe(1);
  });

  it('holds every mark of every row, and never fewer than three decades', () => {
    expect(decadesFor([])).toBe(3);
    expect(decadesFor([nothing])).toBe(3);
    expect(decadesFor([row({ earliest: 9740 })])).toBe(4);
    const rows = [row({}), row({ earliest: 0, latest: 1_250_418, readable_end: 1_250_418 })];
    const decades = decadesFor(rows);
    expect(decades).toBe(7);
    for (const one of rows) expect(rulerOf(one, decades)?.earliest).toBeGreaterThan(0);
  });

  it('does not slide while a lag changes inside a decade', () => {
    expect(decadesFor([row({ earliest: 0, latest: 200_000 })])).toBe(decadesFor([row({ earliest: 0, latest: 900_000 })]));
  });
});

describe('a ruler', () => {
  it('has replay between checkpoint and position, unread between position and readable end', () => {
    const ruler = rulerOf(row({}), 4);
    expect(ruler?.replay).toEqual({ from: ruler?.checkpoint, to: ruler?.position });
    expect(ruler?.unread).toEqual({ from: ruler?.position, to: 1 });
    expect(ruler?.held).toBeNull();
    expect(ruler?.gone).toBeNull();
  });

  it('begins the unread of a stopped job at its checkpoint', () => {
    const ruler = rulerOf(row({ position: null }), 4);
    expect(ruler?.position).toBeNull();
    expect(ruler?.replay).toBeNull();
    expect(ruler?.unread).toEqual({ from: ruler?.checkpoint, to: 1 });
  });

  it('ends the unread of a bounded run at its stop offset', () => {
    const ruler = rulerOf(row({ stop_offset: 9100 }), 4);
    expect(ruler?.unread?.from).toBe(ruler?.position);
    expect(ruler?.unread?.to).toBeCloseTo(place(650, 4));
    expect(rulerOf(row({ stop_offset: 9000 }), 4)?.unread).toBeNull();
    expect(rulerOf(row({ stop_offset: null }), 4)?.unread).toEqual({ from: ruler?.position, to: 1 });
  });

  it('shows open transactions as held, not as unread', () => {
    const ruler = rulerOf(row({ position: 9750, latest: 9800 }), 4);
    expect(ruler?.readableEnd).toBeLessThan(1);
    expect(ruler?.unread).toBeNull();
    expect(ruler?.held).toEqual({ from: ruler?.readableEnd, to: 1 });
  });

  it('shows what a restart needs and the log no longer has', () => {
    const ruler = rulerOf(row({ earliest: 9000 }), 4);
    expect(ruler?.gone).toEqual({ from: ruler?.checkpoint, to: ruler?.earliest });
  });

  it('places equal offsets at the same x', () => {
    const ruler = rulerOf(row({ group_committed: 9750, checkpointed: 9750, position: 9750 }), 4);
    expect([ruler?.group, ruler?.checkpoint, ruler?.position]).toEqual([1, 1, 1]);
    expect(ruler?.unread).toBeNull();
  });

  it('draws no mark for an unknown offset', () => {
    const ruler = rulerOf(row({ group_committed: null, earliest: null }), 4);
    expect(ruler?.group).toBeNull();
    expect(ruler?.earliest).toBeNull();
    expect(ruler?.kept).toBeNull();
  });

  it('cannot be drawn without an end', () => {
    expect(rulerOf(nothing, 4)).toBeNull();
    expect(endOf(row({ latest: null }))).toBe(9750);
    expect(endOf(row({ readable_end: null, latest: 9800 }))).toBe(9800);
  });

  it('keeps every span inside the axis and pointing to the right', () => {
    let seed = 7;
    const random = (): number => (seed = (seed * 48271) % 2147483647);
    const maybe = (): number | null => (random() % 5 === 0 ? null : random() % 10 ** (1 + (random() % 9)));
    for (let round = 0; round < 500; round += 1) {
      const offsets: Offsets = {
        earliest: maybe(), group_committed: maybe(), checkpointed: maybe(), position: maybe(), readable_end: maybe(), latest: maybe(),
      };
      const ruler = rulerOf(offsets, decadesFor([offsets]));
      if (ruler === null) continue;
      for (const span of [ruler.replay, ruler.unread, ruler.held, ruler.gone]) {
        if (span === null) continue;
        expect(span.from).toBeGreaterThanOrEqual(0);
        expect(span.to).toBeGreaterThan(span.from);
        expect(span.to).toBeLessThanOrEqual(1);
      }
    }
  });
});

describe('the sentence', () => {
  const lag = { position: 750, checkpoint: 1210, group: 1250 };

  it('says all marks, and unknown for null', () => {
    const text = sentence({ ...row({ position: null }), topic: 'orders', partition: 0, lag });
    expect(text).toContain('orders partition 0');
    expect(text).toContain('position unknown');
    expect(text).toContain('checkpointed 8540');
    expect(text).not.toContain('no longer in the log');
  });

  it('says how much is gone', () => {
    const text = sentence({ ...row({ earliest: 9000 }), topic: 'orders', partition: 0, lag });
    expect(text).toContain('460 offsets after the checkpoint are no longer in the log');
  });

  it('says when unread records are deleted, and nothing where that is not known', () => {
    const until = (offsets_left: number | null, estimated_ms: number | null): string | null =>
      untilDeletion({ retention: { offsets_left, estimated_ms } });
    expect(until(40, 90_000)).toBe('unread deleted in about 1 min 30 s');
    expect(until(0, 0)).toBe('unread is being deleted');
    expect(until(-5, 0)).toBeNull();
    expect(until(40, null)).toBeNull();
    expect(until(null, null)).toBeNull();
    expect(untilDeletion({})).toBeNull();
    const retention = { offsets_left: 40, estimated_ms: 90_000 };
    expect(sentence({ ...row({}), topic: 'orders', partition: 0, lag, retention })).toContain('deleted in about 1 min 30 s');
  });
});
