//! No runtime at all: one epoll loop per thread, epoll_pwait2 for the wait, the wheel for the time.
use crate::wheel::{Wheel, now};
use crate::*;
use std::os::fd::IntoRawFd;

#[derive(Default)]
struct C {
    fd: i32,
    generation: u32,
    b: Vec<u8>,
    i: u32,
    due: u64,
}
fn put(fd: i32, b: &[u8]) -> bool {
    unsafe {
        libc::send(fd, b.as_ptr() as *const _, b.len(), libc::MSG_NOSIGNAL) == b.len() as isize
    }
}

pub fn serve() {
    let o = options();
    let l = listen().into_raw_fd();
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
        let ep = libc::epoll_create1(0);
        let add = |fd: i32, k: u64| {
            let mut e = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLET) as u32,
                u64: k,
            };
            libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, &mut e);
        };
        let mut e = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: u64::MAX,
        };
        libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, l, &mut e);
        let mut cs: Vec<C> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        let mut w: Wheel<(usize, u32)> = Wheel::new(o.tick);
        let mut evs = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        let (mut due, mut buf, mut rb) = (Vec::new(), Vec::new(), vec![0u8; 65536]);
        loop {
            let ts = w.next().map(|n| {
                let d = n.saturating_sub(now());
                libc::timespec {
                    tv_sec: (d / 1_000_000_000) as i64,
                    tv_nsec: (d % 1_000_000_000) as i64,
                }
            });
            let p = ts.as_ref().map_or(std::ptr::null(), |t| t as *const _);
            let n = libc::syscall(
                libc::SYS_epoll_pwait2,
                ep,
                evs.as_mut_ptr(),
                512,
                p,
                0usize,
                8usize,
            ) as i32;
            for k in 0..n.max(0) as usize {
                let key = evs[k].u64;
                if key == u64::MAX {
                    loop {
                        let fd = libc::accept4(
                            l,
                            std::ptr::null_mut(),
                            std::ptr::null_mut(),
                            libc::SOCK_NONBLOCK,
                        );
                        if fd < 0 {
                            break;
                        }
                        let one = 1i32;
                        libc::setsockopt(
                            fd,
                            libc::IPPROTO_TCP,
                            libc::TCP_NODELAY,
                            &one as *const _ as *const _,
                            4,
                        );
                        let i = free.pop().unwrap_or_else(|| {
                            cs.push(C::default());
                            cs.len() - 1
                        });
                        cs[i].fd = fd;
                        add(fd, i as u64);
                    }
                    continue;
                }
                let i = key as usize;
                let c = &mut cs[i];
                let r = libc::recv(c.fd, rb.as_mut_ptr() as *mut _, rb.len(), 0);
                if r < 0 && *libc::__errno_location() == libc::EAGAIN {
                    continue;
                }
                if r <= 0 {
                    libc::close(c.fd);
                    *c = C {
                        generation: c.generation + 1,
                        ..C::default()
                    };
                    free.push(i);
                    continue;
                }
                let whole = request_len(&rb[..r as usize]);
                let q: &[u8] = if c.b.is_empty() && whole.is_some() {
                    &rb[..r as usize]
                } else {
                    c.b.extend_from_slice(&rb[..r as usize]);
                    &c.b
                };
                let Some((n, h)) = request_len(q) else {
                    continue;
                };
                let (stream, health) = (wants_stream(&q[h..n]), q.starts_with(b"GET /health"));
                c.b = Vec::new();
                if health {
                    put(c.fd, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                } else if !stream {
                    put(c.fd, json_response());
                } else if o.ttft == 0 && o.itl == 0 {
                    buf.clear();
                    buf.extend_from_slice(SSE_HEAD);
                    for t in 0..o.tokens {
                        framed(t, t + 1 == o.tokens, &mut buf)
                    }
                    put(c.fd, &buf);
                } else {
                    put(c.fd, SSE_HEAD);
                    (c.i, c.due) = (0, now() + o.ttft);
                    w.add(c.due, (i, c.generation));
                }
            }
            let t = now();
            w.fire(t, &mut due);
            for (i, generation) in due.drain(..) {
                let c = &mut cs[i];
                if c.generation != generation {
                    continue;
                }
                buf.clear();
                // Late? Everything that is due by now goes out in one write, so overload costs less per token.
                while c.i < o.tokens && c.due <= t {
                    framed(c.i, c.i + 1 == o.tokens, &mut buf);
                    c.i += 1;
                    c.due += o.itl;
                }
                put(c.fd, &buf);
                if c.i < o.tokens {
                    w.add(c.due, (i, generation))
                }
            }
        }
    }
}
