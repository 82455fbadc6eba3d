import type { Options, VllmSim } from "./index.js";

/** How the servers of a test file are started. */
export interface HookOptions extends Options {
  /** A server for each test, or one for the whole file ["test"]. */
  per?: "test" | "file";
}

/**
 * Registers hooks of the test runner that start and stop servers.
 *
 * The result stands for the server that runs at the moment: read it within a test or a hook.
 */
export declare function vllmSim(options?: HookOptions): Omit<VllmSim, "stop">;
