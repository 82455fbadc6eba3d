//! Draws the length of random replies, in tokens. Source: llm-d-inference-sim
//! `histogram_helper.go`, `dataset.go`.

use vllm_sim_random::Draw;

/// Probabilities of the five length buckets below the maximum; all other replies get exactly the
/// maximum.
const SHARES: [f64; 5] = [0.20, 0.30, 0.20, 0.05, 0.10];
/// Width of a length bucket for a large maximum, in tokens.
const WIDTH: u32 = 20;
/// Mean and standard deviation of the length of replies without a maximum, in tokens.
const FREE: (f64, f64) = (40.0, 20.0);

/// Smallest maximum reply length with five non-empty buckets, in tokens.
const SMALLEST: u32 = 7;

/// Draws the length of a reply whose maximum the client set, in tokens.
///
/// With the same random draws, a larger maximum never gives a shorter reply.
pub(super) fn limited(max: u32, rng: &mut impl Draw) -> u32 {
    if max < SMALLEST {
        return limited(SMALLEST, rng).min(max);
    }
    let mut drawn = rng.unit();
    for (bucket, share) in SHARES.iter().enumerate() {
        if drawn < *share {
            let (low, high) = bounds(bucket as u32, max);
            return rng.between(low.into(), high.max(low).into()) as u32;
        }
        drawn -= share;
    }
    max
}

fn bounds(bucket: u32, max: u32) -> (u32, u32) {
    if max <= 5 * WIDTH + 1 {
        let width = f64::from(max - 1) / 5.0;
        let start = (width * f64::from(bucket)) as u32 + 1;
        return (start, (width * f64::from(bucket + 1)) as u32);
    }
    match bucket {
        0..=2 => (WIDTH * bucket + 1, WIDTH * (bucket + 1)),
        3 => (3 * WIDTH + 1, max - WIDTH),
        _ => (max - WIDTH + 1, max - 1),
    }
}

/// Draws the length of a reply that only the context limits, in tokens.
pub(super) fn free(limit: u32, rng: &mut impl Draw) -> u32 {
    if limit < WIDTH {
        return rng.between(1, limit.max(1).into()) as u32;
    }
    loop {
        let drawn = (FREE.0 + FREE.1 * rng.normal()).round();
        if drawn >= 1.0 && drawn <= f64::from(limit) {
            return drawn as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{Purpose, stream};

    #[test]
    fn lengths_stay_within_the_limit_and_reach_it() {
        for max in [1, 2, 6, 7, 50, 101, 102, 500] {
            let mut rng = stream(1, max.into(), Purpose::Content);
            let drawn: Vec<_> = (0..2000).map(|_| limited(max, &mut rng)).collect();
            assert!(drawn.iter().all(|n| (1..=max).contains(n)), "{max}");
            assert!(drawn.contains(&max), "{max}");
        }
    }

    #[test]
    fn a_larger_maximum_makes_no_reply_shorter() {
        for key in 0..500 {
            let lengths: Vec<_> = (1..=300)
                .map(|max| limited(max, &mut stream(1, key, Purpose::Length)))
                .collect();
            assert!(lengths.is_sorted(), "{key}: {lengths:?}");
        }
    }

    #[test]
    fn about_fifteen_in_a_hundred_replies_reach_the_limit() {
        let mut rng = stream(1, 1, Purpose::Content);
        let full = (0..10_000)
            .filter(|_| limited(200, &mut rng) == 200)
            .count();
        assert!((1350..1650).contains(&full), "{full}");
    }
}
