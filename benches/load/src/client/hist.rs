//! Log-linear histogram over nanoseconds: 64 sub-buckets per octave (error below 1.6 %).
const SUB: u64 = 64;

#[derive(Clone)]
pub struct Hist {
    b: Vec<u64>,
    pub n: u64,
    sum: f64,
    max: u64,
}

impl Hist {
    pub fn new() -> Self {
        Hist {
            b: vec![0; (64 * SUB) as usize],
            n: 0,
            sum: 0.0,
            max: 0,
        }
    }
    #[inline]
    pub fn add(&mut self, v: u64) {
        let i = if v < SUB {
            v
        } else {
            let shift = 63 - v.leading_zeros() as u64 - 6; // v >> shift lies in 64..128
            (shift + 1) * SUB + ((v >> shift) - SUB)
        };
        self.b[i as usize] += 1;
        self.n += 1;
        self.sum += v as f64;
        self.max = self.max.max(v);
    }
    pub fn merge(&mut self, o: &Hist) {
        for (a, b) in self.b.iter_mut().zip(&o.b) {
            *a += b;
        }
        self.n += o.n;
        self.sum += o.sum;
        self.max = self.max.max(o.max);
    }
    pub fn q(&self, q: f64) -> u64 {
        if self.n == 0 {
            return 0;
        }
        let want = (q * self.n as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, c) in self.b.iter().enumerate() {
            seen += c;
            if seen >= want {
                let i = i as u64;
                let v = if i < SUB {
                    i
                } else {
                    let shift = i / SUB - 1;
                    ((SUB + i % SUB) << shift) + (1u64 << shift) / 2
                };
                return v.min(self.max);
            }
        }
        self.max
    }
    /// Percentiles in milliseconds.
    pub fn json(&self) -> serde_json::Value {
        let ms = |v: u64| (v as f64 / 1e3).round() / 1e3;
        let mean = if self.n > 0 {
            (self.sum / self.n as f64 / 1e3).round() / 1e3
        } else {
            0.0
        };
        serde_json::json!({
            "n": self.n, "mean": mean, "p50": ms(self.q(0.5)), "p90": ms(self.q(0.9)),
            "p99": ms(self.q(0.99)), "p99.9": ms(self.q(0.999)), "max": ms(self.max)
        })
    }
}
