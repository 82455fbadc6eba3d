//! One thread of connections, closed loop over epoll.

use crate::http::{Finders, Resp, St};
use crate::stats::Stats;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is asked of the server.
pub struct Cfg {
    pub addr: libc::sockaddr_in,
    pub request: Vec<u8>,
    pub stream: bool,
    pub keepalive: bool,
    pub user_clock: bool,
    pub ttft: u64, // expected, ns; 0 = not judged
    pub itl: u64,
    pub max_errors: u64,
    pub conns: usize,
    pub ramp: u64,
}

/// What the threads share.
pub struct Shared {
    pub t0: u64,
    pub rec_start: u64,
    pub deadline: u64,
    pub left: AtomicI64,
    pub errors: AtomicU64,
    pub ended: AtomicU64, // workers whose measuring is over; they hold their connections until the last sample
    pub open: AtomicU64,  // streams whose response head has arrived and that are not over
    pub stop: AtomicBool,
}

/// Nanoseconds of the kernel's clock, the one that it stamps arrivals with.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[derive(PartialEq)]
enum Phase {
    Idle,
    Connecting,
    Open,
}

struct Conn {
    fd: i32,
    phase: Phase,
    r: Resp,
    sent: u64,
    last: u64,
    counted_open: bool,
}

/// Some connections, and the loop that serves them.
pub struct Worker<'a> {
    cfg: &'a Cfg,
    shared: &'a Shared,
    epoll: i32,
    conns: Vec<Conn>,
    stats: Stats,
    finders: Finders,
    live: usize,
}

impl<'a> Worker<'a> {
    /// A thread's share of the connections, not open yet.
    pub fn new(cfg: &'a Cfg, shared: &'a Shared, conns: usize) -> Self {
        let conn = || Conn {
            fd: -1,
            phase: Phase::Idle,
            r: Resp::new(),
            sent: 0,
            last: 0,
            counted_open: false,
        };
        Worker {
            cfg,
            shared,
            epoll: unsafe { libc::epoll_create1(0) },
            conns: std::iter::repeat_with(conn).take(conns).collect(),
            stats: Stats::new(),
            finders: Finders::new(),
            live: 0,
        }
    }
}

impl Worker<'_> {
    fn close(&mut self, i: usize) {
        let c = &mut self.conns[i];
        if c.fd >= 0 {
            let l = libc::linger {
                l_onoff: 1,
                l_linger: 0,
            }; // no TIME_WAIT: ports are scarce
            unsafe {
                libc::setsockopt(
                    c.fd,
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    &l as *const _ as *const _,
                    8,
                );
                libc::close(c.fd);
            }
        }
        c.fd = -1;
        c.phase = Phase::Idle;
        if std::mem::take(&mut c.counted_open) {
            self.shared.open.fetch_sub(1, Relaxed);
        }
    }
    fn error(&mut self, why: &str) {
        *self.stats.errors.entry(why.to_string()).or_default() += 1;
        if self.shared.errors.fetch_add(1, Relaxed) + 1 >= self.cfg.max_errors {
            self.shared.stop.store(true, Relaxed); // do not hammer a server that refuses us
        }
    }
    fn fail(&mut self, i: usize, why: &str) {
        self.error(why);
        self.close(i);
    }
    /// Takes the next request from the budget and sends it; false when there is none left.
    fn next(&mut self, i: usize) -> bool {
        if self.shared.left.fetch_sub(1, Relaxed) <= 0 || self.shared.stop.load(Relaxed) {
            self.close(i);
            self.live -= 1;
            return false;
        }
        if self.conns[i].phase == Phase::Open {
            self.send(i)
        } else {
            self.connect(i)
        }
        true
    }
    fn connect(&mut self, i: usize) {
        unsafe {
            let fd = libc::socket(
                libc::AF_INET,
                libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0,
            );
            let one = 1i32;
            let p = &one as *const i32 as *const libc::c_void;
            libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, p, 4);
            if !self.cfg.user_clock {
                libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, p, 4);
            }
            self.conns[i].fd = fd;
            self.conns[i].phase = Phase::Connecting;
            self.stats.connects += 1;
            let mut ev = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET | libc::EPOLLRDHUP) as u32,
                u64: i as u64,
            };
            let r = libc::connect(fd, &self.cfg.addr as *const _ as *const _, 16);
            if fd < 0 || (r < 0 && *libc::__errno_location() != libc::EINPROGRESS) {
                self.fail(i, "connect");
                self.live -= 1;
                return;
            }
            libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut ev);
        }
    }
    fn send(&mut self, i: usize) {
        let c = &mut self.conns[i];
        c.r.reset();
        c.phase = Phase::Open;
        c.sent = now();
        c.last = 0;
        let q = &self.cfg.request;
        let n = unsafe { libc::send(c.fd, q.as_ptr() as *const _, q.len(), libc::MSG_NOSIGNAL) };
        if n != q.len() as isize {
            self.fail(i, "short send");
            self.next(i);
        }
    }
    fn event(&mut self, i: usize, buf: &mut [u8]) {
        if self.conns[i].phase == Phase::Connecting {
            let (mut e, mut l) = (0i32, 4u32);
            unsafe {
                libc::getsockopt(
                    self.conns[i].fd,
                    libc::SOL_SOCKET,
                    libc::SO_ERROR,
                    &mut e as *mut _ as *mut _,
                    &mut l,
                )
            };
            if e != 0 {
                self.fail(i, "connect refused");
                self.next(i);
            } else {
                self.send(i);
            }
            return;
        }
        loop {
            if self.conns[i].phase != Phase::Open {
                return;
            }
            let (n, stamp) = recv(self.conns[i].fd, buf);
            if n < 0 {
                let e = unsafe { *libc::__errno_location() };
                if e != libc::EAGAIN {
                    self.fail(i, &format!("read errno {e}"));
                    self.next(i);
                }
                return;
            }
            if n == 0 {
                let c = &mut self.conns[i];
                c.r.eof(&self.finders);
                if matches!(c.r.st, St::Done) {
                    self.finish(i, now());
                } else if matches!(c.r.st, St::Head)
                    && c.r.bytes == 0
                    && c.r.status == 0
                    && self.cfg.keepalive
                    && c.sent > 0
                {
                    self.fail(i, "closed before the response");
                } else {
                    self.fail(i, "truncated");
                }
                self.close(i);
                self.next(i);
                return;
            }
            self.got(i, &buf[..n as usize], stamp);
            if (n as usize) < buf.len() {
                return; // edge-triggered: a short read has drained the socket
            }
        }
    }
    fn got(&mut self, i: usize, d: &[u8], stamp: u64) {
        let t = now();
        let ts = if self.cfg.user_clock || stamp == 0 {
            t
        } else {
            stamp
        };
        let rec = ts >= self.shared.rec_start;
        let c = &mut self.conns[i];
        let ev0 = c.r.events;
        let tok0 = c.r.tokens;
        let new = match c.r.feed(d, &self.finders) {
            Ok(n) => n,
            Err(e) => {
                self.fail(i, e);
                self.next(i);
                return;
            }
        };
        if c.r.sse && !c.counted_open {
            c.counted_open = true;
            self.shared.open.fetch_add(1, Relaxed);
        }
        if rec {
            let s = &mut self.stats;
            s.reads += 1;
            s.bytes += d.len() as u64;
            s.tokens += new;
            s.events += c.r.events - ev0;
            s.lag.add(t.saturating_sub(ts));
            if c.r.sse && new > 0 {
                s.coalesced += new - 1;
                let (tt, it) = (self.cfg.ttft, self.cfg.itl);
                for k in 0..new {
                    let idx = tok0 + k;
                    if idx == 0 {
                        let v = ts.saturating_sub(c.sent);
                        s.ttft.add(v);
                        if tt > 0 {
                            s.ttft_err.add(v.abs_diff(tt));
                        }
                    } else {
                        let g = if k == 0 { ts.saturating_sub(c.last) } else { 0 };
                        s.gap.add(g);
                        if it > 0 {
                            s.gap_err.add(g.abs_diff(it));
                        }
                    }
                    if it > 0 {
                        let due = c.sent + tt + idx * it;
                        s.sched_err.add(ts.abs_diff(due));
                        s.early += (ts + 50_000 < due) as u64;
                    }
                }
            }
        }
        if new > 0 {
            c.last = ts;
        }
        if matches!(c.r.st, St::Done) {
            self.finish(i, ts);
            if self.conns[i].r.close || !self.cfg.keepalive {
                self.close(i);
            }
            self.next(i);
        }
    }
    fn finish(&mut self, i: usize, ts: u64) {
        let c = &mut self.conns[i];
        if std::mem::take(&mut c.counted_open) {
            self.shared.open.fetch_sub(1, Relaxed);
        }
        if ts < self.shared.rec_start && c.r.status == 200 {
            return;
        }
        if c.r.status != 200 {
            let why = format!("status {}", c.r.status);
            self.error(&why);
        } else if c.r.err_event {
            self.error("error event");
        } else {
            self.stats.ok += 1;
            self.stats.total.add(ts.saturating_sub(c.sent));
            if c.r.sse && !c.r.done_mark {
                self.stats.no_done += 1;
            }
            if !c.r.sse && self.cfg.stream {
                self.error("stream wanted, none came");
            }
        }
    }
    /// Loads until the end, and says what came.
    pub fn run(mut self) -> Stats {
        let mut evs = vec![libc::epoll_event { events: 0, u64: 0 }; 1024];
        let mut buf = vec![0u8; 256 * 1024];
        let n = self.conns.len();
        let mut started = 0;
        self.live = n;
        while self.live > 0 && !self.shared.stop.load(Relaxed) {
            let t = now();
            if t >= self.shared.deadline {
                break;
            }
            while started < n && t >= self.shared.t0 + self.cfg.ramp * started as u64 / n as u64 {
                self.next(started);
                started += 1;
            }
            let wait = if started < n { 1 } else { 20 };
            let k = unsafe { libc::epoll_wait(self.epoll, evs.as_mut_ptr(), 1024, wait) };
            for e in 0..k.max(0) as usize {
                self.event(evs[e].u64 as usize, &mut buf);
            }
        }
        self.shared.ended.fetch_add(1, Relaxed);
        while !self.shared.stop.load(Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for i in 0..n {
            self.close(i);
        }
        unsafe { libc::close(self.epoll) };
        self.stats
    }
}

/// One recvmsg with the kernel's arrival stamp of the newest segment in it.
fn recv(fd: i32, buf: &mut [u8]) -> (isize, u64) {
    unsafe {
        let mut ctl = [0u64; 8];
        let mut iov = libc::iovec {
            iov_base: buf.as_mut_ptr() as *mut _,
            iov_len: buf.len(),
        };
        let mut m: libc::msghdr = std::mem::zeroed();
        m.msg_iov = &mut iov;
        m.msg_iovlen = 1;
        m.msg_control = ctl.as_mut_ptr() as *mut _;
        m.msg_controllen = 64;
        let n = libc::recvmsg(fd, &mut m, 0);
        let mut stamp = 0;
        if n > 0 {
            let c = libc::CMSG_FIRSTHDR(&m);
            if !c.is_null()
                && (*c).cmsg_level == libc::SOL_SOCKET
                && (*c).cmsg_type == libc::SCM_TIMESTAMPNS
            {
                let t = std::ptr::read_unaligned(libc::CMSG_DATA(c) as *const libc::timespec);
                stamp = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
            }
        }
        (n, stamp)
    }
}
