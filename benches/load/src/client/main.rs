//! Streaming load client: N concurrent connections on a few epoll threads, closed loop.
//! Arrival times are the kernel's receive stamps (SO_TIMESTAMPNS), so the client's own queueing
//! does not count as the server's error; the client's lag is reported beside them.
mod hist;
mod http;
mod proc;
mod startup;
mod stats;
mod worker;

use hist::Hist;
use serde_json::json;
use stats::Stats;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use worker::{Cfg, Shared, Worker, now};

pub struct Args(HashMap<String, String>);
impl Args {
    fn get<T: std::str::FromStr>(&self, k: &str, d: T) -> T {
        match self.0.get(k) {
            Some(v) => v
                .parse()
                .unwrap_or_else(|_| panic!("bad value for --{k}: {v}")),
            None => d,
        }
    }
}

fn body(a: &Args, stream: bool) -> Vec<u8> {
    if let Some(f) = a.0.get("body") {
        return std::fs::read(f).expect("--body");
    }
    let words = "lorem ".repeat(a.get("prompt-words", 10usize));
    let mut b = json!({"model": a.get("model", "m".to_string()), "max_tokens": a.get("max-tokens", 100u32),
                       "stream": stream});
    if a.get("path", String::new()).ends_with("/completions")
        && !a.get("path", String::new()).contains("chat")
    {
        b["prompt"] = json!(words);
    } else {
        b["messages"] = json!([{"role": "user", "content": words}]);
    }
    if a.get("ignore-eos", true) {
        b["ignore_eos"] = json!(true);
    }
    b.to_string().into_bytes()
}

fn main() {
    let argv: Vec<String> = std::env::args().skip(1).collect();
    if argv.first().map(String::as_str) == Some("startup") {
        return startup::main(&argv[1..]);
    }
    let mut m = HashMap::new();
    for p in argv.chunks(2) {
        let k = p[0]
            .strip_prefix("--")
            .unwrap_or_else(|| panic!("expected --option, got {}", p[0]));
        m.insert(k.to_string(), p.get(1).expect("value").clone());
    }
    let a = Args(m);
    let url: String = a.get("url", "127.0.0.1:8000".to_string());
    let sa: std::net::SocketAddrV4 = url.parse().expect("--url takes IPV4:PORT");
    let path: String = a.get("path", "/v1/chat/completions".to_string());
    let stream = a.get("stream", true);
    let b = body(&a, stream);
    let keepalive = a.get("keepalive", true);
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: {url}\r\ncontent-type: application/json\r\naccept: */*\r\n{}{}content-length: {}\r\n\r\n",
        if keepalive { "" } else { "connection: close\r\n" },
        a.0.get("header").map_or(String::new(), |h| format!("{h}\r\n")), b.len()).into_bytes();
    request.extend_from_slice(&b);
    let sec = |k: &str, d: f64| (a.get(k, d) * 1e9) as u64;
    let cfg = Cfg {
        addr: libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: sa.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(sa.ip().octets()),
            },
            sin_zero: [0; 8],
        },
        request,
        stream,
        keepalive,
        user_clock: a.get("clock", "kernel".to_string()) == "user",
        ttft: sec("expect-ttft-ms", 0.0) / 1000,
        itl: sec("expect-itl-ms", 0.0) / 1000,
        max_errors: a.get("max-errors", 1000u64),
        conns: a.get("conns", 1usize),
        ramp: sec("ramp", 0.0),
    };
    let threads = a.get("threads", 1usize).max(1);
    let pid: i32 = a.get("server-pid", 0);
    let pids = || if pid > 0 { proc::tree(pid) } else { vec![] };
    let rss0 = proc::rss_kib(&pids());
    assert!(pid == 0 || rss0 > 0, "no process {pid}");
    let t0 = now();
    let rec_start = t0 + cfg.ramp + sec("warmup", 0.0);
    let requests = a.get("requests", 0i64);
    let secs = sec("seconds", if requests > 0 { 600.0 } else { 5.0 });
    let sh = Shared {
        t0,
        rec_start,
        deadline: rec_start + secs,
        open: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        left: AtomicI64::new(if requests > 0 { requests } else { i64::MAX / 2 }),
    };
    let (cfg, sh) = (Arc::new(cfg), Arc::new(sh));
    let handles: Vec<_> = (0..threads)
        .map(|t| {
            let (cfg, sh) = (cfg.clone(), sh.clone());
            std::thread::spawn(move || {
                let n = cfg.conns / threads + (t < cfg.conns % threads) as usize;
                Worker::new(&cfg, &sh, n).run()
            })
        })
        .collect();
    // How late this machine wakes a sleeper that does nothing else: no server can be expected below it.
    let sh2 = sh.clone();
    let probe = std::thread::spawn(move || {
        let mut late = Hist::new();
        while !sh2.stop.load(Relaxed) && now() < sh2.deadline {
            let want = now() + 5_000_000;
            std::thread::sleep(std::time::Duration::from_millis(5));
            if want > sh2.rec_start {
                late.add(now().saturating_sub(want));
            }
        }
        late
    });
    // The main thread only samples: CPU at both ends of the window, memory and open streams on the way.
    let me = std::process::id() as i32;
    let sample = || {
        (
            now(),
            proc::cpu_seconds(&[me]),
            proc::cpu_seconds(&pids()),
            proc::user_sys(&pids()),
        )
    };
    let (mut w0, mut max_open, mut rss_at) = (sample(), 0, rss0);
    let mut armed = cfg.ramp == 0 && a.get("warmup", 0.0) == 0.0;
    while (sh.ended.load(Relaxed) as usize) < threads && handles.iter().any(|h| !h.is_finished()) {
        let ns = sh
            .deadline
            .saturating_sub(now())
            .clamp(1_000_000, if armed { 50_000_000 } else { 5_000_000 });
        std::thread::sleep(std::time::Duration::from_nanos(ns));
        if !armed && now() >= rec_start {
            w0 = sample();
            armed = true;
        }
        let o = sh.open.load(Relaxed);
        if pid > 0 && o >= max_open && o > 0 {
            rss_at = if o > max_open {
                proc::rss_kib(&pids())
            } else {
                rss_at.max(proc::rss_kib(&pids()))
            };
            max_open = o;
        }
        max_open = max_open.max(o);
    }
    let w1 = sample();
    let mem1 = (proc::peak_kib(&pids()), proc::threads(&pids()));
    sh.stop.store(true, Relaxed);
    let mut s = Stats::new();
    for h in handles {
        s.merge(&h.join().expect("worker"));
    }
    let late = probe.join().expect("probe");
    let dt = (w1.0.min(sh.deadline.max(w0.0 + 1)) - w0.0) as f64 / 1e9;
    let (ccpu, scpu) = (w1.1 - w0.1, w1.2 - w0.2);
    let r3 = |v: f64| (v * 1e3).round() / 1e3;
    let per = |cpu: f64, n: u64| if n > 0 { r3(cpu * 1e6 / n as f64) } else { 0.0 };
    let errors: u64 = s.errors.values().sum();
    println!("{}", serde_json::to_string_pretty(&json!({
        "args": argv.join(" "),
        "seconds": r3(dt), "requests_ok": s.ok, "errors": errors, "error_kinds": s.errors, "connects": s.connects,
        "req_per_s": r3(s.ok as f64 / dt), "tokens": s.tokens, "events": s.events, "bytes": s.bytes,
        "chunks_per_s": r3(s.tokens as f64 / dt), "streams_without_done": s.no_done,
        "ttft_ms": s.ttft.json(), "itl_ms": s.gap.json(), "request_ms": s.total.json(),
        "ttft_abs_err_ms": s.ttft_err.json(), "itl_abs_err_ms": s.gap_err.json(),
        "machine_wake_late_ms": late.json(), "schedule_abs_err_ms": s.sched_err.json(), "early_chunks": s.early,
        "client": { "cpu_s": r3(ccpu), "us_per_chunk": per(ccpu, s.tokens), "us_per_req": per(ccpu, s.ok),
                    "lag_ms": s.lag.json(), "reads": s.reads, "coalesced_chunks": s.coalesced },
        "server": { "cpu_s": r3(scpu), "user_s": r3(w1.3.0 - w0.3.0), "sys_s": r3(w1.3.1 - w0.3.1),
                    "cores_used": r3(scpu / dt), "us_per_chunk": per(scpu, s.tokens), "us_per_req": per(scpu, s.ok),
                    "peak_rss_kib": mem1.0, "threads": mem1.1,
                    "rss_before_kib": rss0, "rss_at_max_open_kib": rss_at, "max_open_streams": max_open,
                    "rss_kib_per_open_stream": if max_open > 0 { r3((rss_at as f64 - rss0 as f64) / max_open as f64) } else { 0.0 } },
    })).expect("a value is always written"));
}
