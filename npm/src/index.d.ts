/** One rule of scripted replies, as a YAML file of `--replies` holds it. */
export type Rule = Record<string, unknown>;

/** How a server is started. */
export interface Options {
  /** The model's name ["demo"]. */
  model?: string;
  /** More flags, as they are typed: `["--seed", "1"]`. */
  args?: readonly string[];
  /** Flags and defaults of `vllm serve` instead of those of llm-d-inference-sim [false]. */
  serve?: boolean;
  /** Scripted replies: a file, or its rules. */
  replies?: string | readonly Rule[];
  /** Failures over time: a file, or its content. */
  scenario?: string | Record<string, unknown>;
  /** Variables over those of this process. */
  env?: Record<string, string>;
  /** The program [`findBinary()`]. */
  binary?: string;
  /** Milliseconds until it must listen [30,000]. */
  startTimeoutMs?: number;
}

/** A share of requests that fail. */
export interface Faults {
  /** Percentage of requests that are refused [0]. */
  rate?: number;
  /** Kinds of failures: `rate_limit`, `server_error`, … [all]. */
  types?: readonly string[];
  /** Percentage of streams that break [0]. */
  streamRate?: number;
  /** Kinds of broken streams: `cut_after=5`, `stall=3:2s`, … [`cut_after=5`]. */
  streamFaults?: readonly string[];
}

/** Which requests are asked for; all that is given must hold. */
export interface RequestFilter {
  /** Wait until so many of them have ended. */
  wait?: number;
  /** Milliseconds to wait [5,000]. */
  timeoutMs?: number;
  path?: string;
  model?: string;
  status?: number;
  /** The Idempotency-Key of a request. */
  key?: string;
  /** Only those behind this id. */
  after?: number;
}

/** A request as the server saw it; `GET /admin/requests` has more fields. */
export interface RecordedRequest {
  id: number;
  path: string;
  /** The status of the answer; null while there is none. */
  status: number | null;
  /** Counts from 1 over the requests that are the same one, tried again. */
  attempt: number;
  /** Seconds between this attempt and the one before; null for the first. */
  gap_seconds: number | null;
  body?: any;
  [field: string]: unknown;
}

/** A server that runs. */
export declare class VllmSim {
  private constructor();
  /** Its address, `http://127.0.0.1:PORT`; of several servers the first one's. */
  readonly url: string;
  /** The base URL of an OpenAI client: `url` and `/v1`. */
  readonly baseUrl: string;
  /** The address of each server (`--replicas`, a port per rank). */
  readonly urls: readonly string[];
  readonly pid: number;
  /** Its log so far, the last 10,000 lines. */
  readonly logs: string;
  /** Kills it; resolves when it is gone. */
  stop(): Promise<void>;
  /** Scripts replies from now on, in place of those before: a file, or its rules; `[]` ends it. */
  setReplies(rules: string | readonly Rule[]): Promise<void>;
  /** Makes a share of all requests fail; `faults()` ends it. */
  faults(faults?: Faults): Promise<void>;
  /** Changes settings by the names of their flags: `{"time-to-first-token": "50ms"}`. */
  configure(settings: Record<string, unknown>): Promise<void>;
  /** Resolves to the requests so far, oldest first. */
  requests(filter?: RequestFilter): Promise<RecordedRequest[]>;
  /** Empties the list of requests; resolves to their number. */
  forgetRequests(): Promise<number>;
}

/** Starts a server on a free port of the loopback interface; resolves once it listens. */
export declare function startVllmSim(options?: Options): Promise<VllmSim>;

/**
 * Returns the program: the one that `VLLM_SIM_BINARY` names, that of the package for this machine, or
 * the first `vllm-sim` on `PATH`. Throws when there is none.
 */
export declare function findBinary(env?: Record<string, string | undefined>): string;
