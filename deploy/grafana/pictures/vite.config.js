export default {
  build: { target: "esnext", chunkSizeWarningLimit: 10000, sourcemap: false },
  define: { "process.env.NODE_ENV": '"production"', "process.env": "{}", global: "globalThis" },
};
