import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import type { Answer } from './api';
import { poll, type Snapshot } from './poll';

/** Poll while the component is there; another key begins anew, with nothing of the old resource. */
export function usePoll<T>(key: string, read: (signal: AbortSignal) => Promise<Answer<T>>): Snapshot<T> {
  const [current] = useState(() => signal<Snapshot<T>>({ body: null, at: null, serverTime: null, fault: null }));
  useEffect(() => {
    const running = poll(read);
    const unsubscribe = running.snapshot.subscribe((value) => {
      current.value = value;
    });
    return () => {
      unsubscribe();
      running.stop();
    };
    // `read` is a new function at each rendering; `key` says whether it reads something else.
  }, [key]);
  return current.value;
}
