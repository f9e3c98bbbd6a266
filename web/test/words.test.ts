import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { curlGet, shellWord } from '../src/curl';
import { parse } from '../src/route';
import { tally } from '../src/tally';
import { toneOfFlag, toneOfHealth, toneOfOutcome, toneOfState } from '../src/tone';

describe('shell words', () => {
  it('reach the program as they are, whatever is in them', () => {
    for (const text of ['plain', "it's", '$HOME `id` "x"', 'two\nlines', 'ünïcode', 'a?b=c&d', "'", '', '\\']) {
      const line = `printf %s ${shellWord(text)}`;
      expect(execFileSync('/bin/sh', ['-c', line], { encoding: 'utf8' })).toBe(text);
    }
  });

  it('make a readable curl of a simple address', () => {
    expect(curlGet('http://127.0.0.1:8080', '/api/v1/jobs/orders')).toBe(
      'curl -sS --fail-with-body http://127.0.0.1:8080/api/v1/jobs/orders',
    );
    expect(curlGet('http://h', '/a?b=c')).toBe("curl -sS --fail-with-body 'http://h/a?b=c'");
  });
});

describe('paths', () => {
  it('name the pages', () => {
    expect(parse('/ui/', '/ui/')).toEqual({ page: 'jobs' });
    expect(parse('/ui', '/ui/')).toEqual({ page: 'jobs' });
    expect(parse('/ui/jobs', '/ui/')).toEqual({ page: 'jobs' });
    expect(parse('/ui/jobs/orders', '/ui/')).toEqual({ page: 'job', job: 'orders' });
    expect(parse('/ui/jobs/orders/', '/ui/')).toEqual({ page: 'job', job: 'orders' });
  });

  it('that name none are said to be none', () => {
    for (const path of ['/', '/uix/', '/ui/other', '/ui/jobs/a/b', '/ui/jobs/%E0%A4%A', '/api/v1/jobs']) {
      expect(parse(path, '/ui/').page).toBe('none');
    }
  });
});

describe('words of the API', () => {
  it('that are not known get no verdict', () => {
    expect(toneOfState('hibernating')).toBe('ask');
    expect(toneOfHealth('constructor')).toBe('ask');
    expect(toneOfHealth('unknown')).toBe('ask');
  });

  it('for how a run ended all have one', () => {
    for (const outcome of ['stopped', 'finished', 'crashed', 'failed', 'outage', 'owner-lost', 'server-stopped']) {
      expect(toneOfOutcome(outcome), outcome).not.toBe('ask');
    }
    expect(toneOfOutcome('finished')).toBe('ok');
  });

  it('that mean loss are grave', () => {
    expect(toneOfFlag('below-earliest')).toBe('bad');
    expect(toneOfFlag('held-by-transaction')).toBe('warn');
  });
});

describe('the tally', () => {
  const job = (state: string, status: string) => ({ state, health: { status } });

  it('counts states and what needs attention', () => {
    expect(tally([job('running', 'ok'), job('running', 'behind'), job('stopped', 'stopped')])).toBe(
      '3 jobs · 2 running · 1 stopped · 1 needs attention',
    );
    expect(tally([job('running', 'ok')])).toBe('1 job · 1 running · none needs attention');
  });

  it('counts a failed job even if its health is silent, and once', () => {
    expect(tally([job('failed', 'unknown'), job('failed', 'blocked')])).toContain('2 need attention');
    expect(tally([])).toBe('');
  });
});
