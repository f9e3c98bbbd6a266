import { defineConfig } from 'vite';

// In development the pages come from Vite and the data from a running server.
const server = process.env['HANDOVER_URL'] ?? 'http://127.0.0.1:8080';

export default defineConfig({
  base: '/ui/',
  server: { proxy: { '/api': server } },
  build: {
    target: 'es2022',
    cssTarget: ['chrome123', 'firefox121', 'safari17.5'],
    // The content security policy allows no data: URL, so nothing may be inlined.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
