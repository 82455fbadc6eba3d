//! Incremental HTTP/1.1 response + SSE reader. It buffers only what straddles a read.
use memchr::{memchr, memmem::Finder};

pub enum St {
    Head,
    Size(usize),
    Data(usize),
    DataEnd(u8),
    Trailer(u8),
    Len(usize),
    ToClose,
    Done,
}

pub struct Finders {
    content: Finder<'static>,
    text: Finder<'static>,
    reason: Finder<'static>,
    error: Finder<'static>,
    usage: Finder<'static>,
}
impl Finders {
    pub fn new() -> Self {
        Finders {
            content: Finder::new("\"content\":"),
            text: Finder::new("\"text\":"),
            reason: Finder::new("\"reasoning"),
            error: Finder::new("\"error\":{"),
            usage: Finder::new("\"completion_tokens\":"),
        }
    }
}

pub struct Resp {
    pub st: St,
    pub status: u16,
    pub sse: bool,
    pub close: bool,
    pub tokens: u64, // data events that carry text
    pub events: u64, // all data events, without [DONE]
    pub bytes: u64,
    pub done_mark: bool,
    pub err_event: bool,
    pub http_chunks: u64,
    hold: Vec<u8>,
}

impl Resp {
    pub fn new() -> Self {
        Resp {
            st: St::Head,
            status: 0,
            sse: false,
            close: false,
            tokens: 0,
            events: 0,
            bytes: 0,
            done_mark: false,
            err_event: false,
            http_chunks: 0,
            hold: Vec::new(),
        }
    }
    pub fn reset(&mut self) {
        let mut h = std::mem::take(&mut self.hold);
        h.clear();
        *self = Resp::new();
        self.hold = h;
    }
    /// Feeds bytes; returns how many text-carrying events they completed, or what is malformed.
    pub fn feed(&mut self, mut d: &[u8], f: &Finders) -> Result<u64, &'static str> {
        let before = self.tokens;
        self.bytes += d.len() as u64;
        while !d.is_empty() {
            match self.st {
                St::Head => {
                    let old = self.hold.len();
                    self.hold.extend_from_slice(d);
                    let from = old.saturating_sub(3);
                    let Some(p) = memchr::memmem::find(&self.hold[from..], b"\r\n\r\n") else {
                        return if self.hold.len() > 65536 {
                            Err("head too long")
                        } else {
                            Ok(0)
                        };
                    };
                    let end = from + p + 4;
                    d = &d[end - old..];
                    self.head(end)?;
                    self.hold.clear();
                }
                St::Size(n) => {
                    let c = d[0];
                    d = &d[1..];
                    self.st = match c {
                        b'0'..=b'9' => St::Size(n * 16 + (c - b'0') as usize),
                        b'a'..=b'f' => St::Size(n * 16 + (c - b'a') as usize + 10),
                        b'A'..=b'F' => St::Size(n * 16 + (c - b'A') as usize + 10),
                        b'\r' => St::Size(n),
                        b'\n' if n == 0 => St::Trailer(0),
                        b'\n' => St::Data(n),
                        _ => return Err("bad chunk size"),
                    };
                }
                St::Data(n) => {
                    let k = n.min(d.len());
                    self.body(&d[..k], f);
                    d = &d[k..];
                    self.st = if k == n {
                        self.http_chunks += 1;
                        St::DataEnd(0)
                    } else {
                        St::Data(n - k)
                    };
                }
                St::DataEnd(i) => {
                    if d[0] != b"\r\n"[i as usize] {
                        return Err("bad chunk end");
                    }
                    d = &d[1..];
                    self.st = if i == 0 { St::DataEnd(1) } else { St::Size(0) };
                }
                St::Trailer(i) => {
                    if d[0] != b"\r\n"[i as usize] {
                        return Err("trailers unsupported");
                    }
                    d = &d[1..];
                    if i == 1 {
                        self.finish(f)
                    } else {
                        self.st = St::Trailer(1)
                    }
                }
                St::Len(n) => {
                    let k = n.min(d.len());
                    self.body(&d[..k], f);
                    d = &d[k..];
                    if k == n {
                        self.finish(f)
                    } else {
                        self.st = St::Len(n - k)
                    }
                }
                St::ToClose => {
                    self.body(d, f);
                    d = &[];
                }
                St::Done => return Err("bytes after the response"),
            }
        }
        Ok(self.tokens - before)
    }
    fn head(&mut self, end: usize) -> Result<(), &'static str> {
        let h = String::from_utf8_lossy(&self.hold[..end]).to_ascii_lowercase();
        self.status = h
            .get(9..12)
            .and_then(|s| s.parse().ok())
            .ok_or("bad status line")?;
        self.close = h.starts_with("http/1.0");
        self.st = St::ToClose;
        for l in h.split("\r\n").skip(1) {
            let Some((k, v)) = l.split_once(':') else {
                continue;
            };
            let v = v.trim();
            match k {
                "transfer-encoding" if v.contains("chunked") => self.st = St::Size(0),
                "content-length" => self.st = St::Len(v.parse().map_err(|_| "bad length")?),
                "content-type" => self.sse = v.starts_with("text/event-stream"),
                "connection" if v.contains("close") => self.close = true,
                _ => {}
            }
        }
        if let St::Len(0) = self.st {
            self.st = St::Done;
        }
        Ok(())
    }
    fn body(&mut self, mut d: &[u8], f: &Finders) {
        if !self.sse {
            self.hold.extend_from_slice(d);
            return;
        }
        while let Some(p) = memchr(b'\n', d) {
            if self.hold.is_empty() {
                self.line(&d[..p], f);
            } else {
                self.hold.extend_from_slice(&d[..p]);
                let l = std::mem::take(&mut self.hold);
                self.line(&l, f);
                self.hold = l;
                self.hold.clear();
            }
            d = &d[p + 1..];
        }
        self.hold.extend_from_slice(d);
    }
    fn line(&mut self, l: &[u8], f: &Finders) {
        let Some(v) = l.strip_prefix(b"data:") else {
            return;
        };
        if v.len() < 10 && v.trim_ascii() == b"[DONE]" {
            self.done_mark = true;
            return;
        }
        self.events += 1;
        let filled = |fd: &Finder| {
            fd.find(v).is_some_and(|i| {
                let r = v[i..]
                    .iter()
                    .position(|c| *c == b':')
                    .map_or(&v[..0], |c| v[i + c + 1..].trim_ascii_start());
                r.len() > 1 && r[0] == b'"' && r[1] != b'"'
            })
        };
        if filled(&f.content) || filled(&f.text) || filled(&f.reason) {
            self.tokens += 1;
        } else if f.error.find(v).is_some() {
            self.err_event = true;
        }
    }
    fn finish(&mut self, f: &Finders) {
        self.st = St::Done;
        if !self.sse {
            if let Some(i) = f.usage.find(&self.hold) {
                let digits = self.hold[i + 20..]
                    .trim_ascii_start()
                    .iter()
                    .take_while(|c| c.is_ascii_digit());
                self.tokens = digits.fold(0, |a, c| a * 10 + (c - b'0') as u64);
            }
        }
    }
    pub fn eof(&mut self, f: &Finders) {
        if let St::ToClose = self.st {
            self.finish(f)
        }
    }
}
