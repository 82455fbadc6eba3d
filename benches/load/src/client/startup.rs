//! `loadgen startup --url IP:PORT [--path /health] [--times 10] -- CMD ARGS...`
//! Milliseconds from spawn to the first 200, and the memory held at that moment.
use crate::proc;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn main(argv: &[String]) {
    let cut = argv.iter().position(|a| a == "--").expect("-- CMD");
    let opt = |k: &str, d: &str| {
        let i = argv[..cut].iter().position(|a| a == k);
        i.map_or(d.to_string(), |i| argv[i + 1].clone())
    };
    let addr: SocketAddr = opt("--url", "127.0.0.1:8000").parse().expect("--url");
    let path = opt("--path", "/health");
    let times: usize = opt("--times", "10").parse().expect("--times");
    let (mut ms, mut rss) = (vec![], vec![]);
    for _ in 0..times.min(100) {
        assert!(
            TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_err(),
            "the port is in use"
        );
        let t = Instant::now();
        let mut kid = Command::new(&argv[cut + 1])
            .args(&argv[cut + 2..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        let ok = loop {
            if t.elapsed() > Duration::from_secs(60) {
                break false;
            }
            if let Ok(mut s) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
                let _ = s.set_read_timeout(Some(Duration::from_secs(2)));
                let _ = write!(
                    s,
                    "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
                );
                let mut b = [0u8; 12];
                if s.read_exact(&mut b).is_ok() && &b[9..12] == b"200" {
                    break true;
                }
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        let el = t.elapsed().as_secs_f64() * 1e3;
        let tree = proc::tree(kid.id() as i32);
        if ok {
            ms.push(el);
            rss.push(proc::rss_kib(&tree));
        }
        for p in tree.iter().rev() {
            unsafe { libc::kill(*p, libc::SIGTERM) };
        }
        std::thread::sleep(Duration::from_millis(50));
        let _ = kid.kill();
        let _ = kid.wait();
        let end = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok()
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    ms.sort_by(f64::total_cmp);
    rss.sort();
    let mid = |n: usize| n / 2;
    let round: Vec<f64> = ms.iter().map(|v| (v * 10.0).round() / 10.0).collect();
    println!(
        "{}",
        serde_json::json!({"ready": ms.len(), "of": times, "median_ms": round.get(mid(ms.len())),
        "min_ms": round.first(), "max_ms": round.last(), "rss_kib_at_ready": rss.get(mid(rss.len()))})
    );
}
